"""The invariants that make a hybrid trustworthy, one test each, in float64 unless it says otherwise: 1 to 14.

Many are tested in more depth beside the code they are about; here each stands once, as plainly as it can be put.
"""

import itertools

import pytest
import torch
from torch.nn import functional as F

import builders
from anchorlm.describe import state_bytes
from anchorlm.hf import AnchorForCausalLM
from anchorlm.memory import Memory
from anchorlm.ops import reference, swiglu
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from builders import assert_near, assert_same_state, normal, tokens
from probes import attended, layer_inputs, logits_of, one_layer, read_by

pytestmark = pytest.mark.filterwarnings("ignore:.*pad_token_id.*")
LLAMA_8B = ModelShape(32, 32, 8, 128, 4096, 128256, 131072)


def test_invariant_01_a_chunk_of_one_is_the_sequential_recurrence():
    """o_t = f_{W_{t-1}}(q_t), by a loop over tokens that knows nothing of chunks."""
    model = one_layer(chunk=1, map="none", norm=False, mix="add")
    ids = tokens(1, 9)
    x, q, k, v = layer_inputs(model, ids)
    a = model.backbone.model.layers[0].self_attn
    writer, reader = a.writers["s"], a.readers["s"]
    positions = torch.arange(9)[None]
    keys = writer.keys(k.repeat_interleave(2, 1).transpose(0, 1)[None], positions, None)[0]
    queries = reader.queries(q.transpose(0, 1)[None], positions, None)[0]
    values = v.repeat_interleave(2, 1).transpose(0, 1) * writer.value_scale
    steps, gates = writer.memory.steps(x).view(9, 3, 4), F.silu(x @ reader.gate_weight.T + reader.gate_bias)
    expected = torch.zeros(9, 4, model.shape.head_dim, dtype=torch.float64)
    for head in range(4):
        w = {name: getattr(writer.memory, name)[head] for name in reference.NAMES}
        for t in range(9):
            with torch.no_grad():
                expected[t, head] = gates[t, head] * reference.swiglu(w, queries[head, t]) * (t > 0)
            now = slice(t, t + 1)
            w = reference.swiglu_update(w, keys[head, now], values[head, now], steps[now, :, head], "squared")
            w = {name: value.detach() for name, value in w.items()}
    assert_near(attended(model, ids)[0], expected.flatten(1))


@pytest.mark.parametrize("length", [23, 24])
def test_invariant_02_decode_equals_prefill(length):
    """Logits and state, off a chunk boundary and on it."""
    model = builders.hybrid(plan="anchor-f", options={"momentum": True, "muon": True, "row_norm": "post"})
    ids = tokens(2, length)
    whole, cache = read_by(model, ids, [length])
    steps, stepped = read_by(model, ids, [1] * length)
    assert_near(steps, whole)
    for row in range(2):
        assert_same_state(stepped.state, row, cache.state, row, model.plan)


@pytest.mark.parametrize("widths", [(1, 39), (5, 6, 7, 22), (30, 10), (39, 1), (13, 14, 13)])
def test_invariant_03_any_split_equals_one_prefill(widths):
    model, ids = builders.hybrid(plan="anchor-f", conv=3), tokens(2, 40)
    whole, cache = read_by(model, ids, [40])
    parts, split = read_by(model, ids, widths)
    assert_near(parts, whole)
    assert_same_state(split.state, 1, cache.state, 1, model.plan)


@pytest.mark.parametrize("lag", [0, 1])
def test_invariant_04_nothing_leaks_back_and_memory_is_first_read_one_chunk_later(lag):
    model, ids = one_layer(lag=lag), tokens(1, 40)
    before = attended(model, ids)
    for j in (0, 3, 4, 14):
        other = ids.clone()
        other[0, j] = (other[0, j] + 1) % builders.VOCAB
        changed = (attended(model, other) != before).any(-1)[0].nonzero()[:, 0]
        assert int(changed[changed != j].min()) == (j // 4 + 1 + lag) * 4
        # The token's own query and gate change its own reading, once there is something to read.
        assert (j in changed) == (j // 4 - lag > 0)


def test_invariant_05_rows_of_a_batch_are_independent():
    model, ids = builders.hybrid(plan="anchor-f"), tokens(3, 31)
    other = torch.cat([ids[:1], tokens(2, 31, seed=8)])
    assert torch.equal(logits_of(model, ids)[0], logits_of(model, other)[0])
    assert_near(logits_of(model, ids)[0], logits_of(model, ids[:1])[0])


@pytest.mark.parametrize("pads", [1, 5, 6, 9, 17])
def test_invariant_06_padding_on_either_side_changes_nothing(pads):
    model, ids = builders.hybrid(plan="anchor-f"), tokens(1, 20)
    expected, more = logits_of(model, ids), tokens(1, 5, seed=9)
    for left in (True, False):
        filler = tokens(1, pads, seed=4)
        padded = torch.cat([filler, ids] if left else [ids, filler], 1)
        mask = torch.cat(
            [torch.zeros(1, pads), torch.ones(1, 20)] if left else [torch.ones(1, 20), torch.zeros(1, pads)], 1
        )
        cache = model.new_cache()
        kept = logits_of(model, padded, attention_mask=mask, cache=cache)[mask.bool()]
        assert_near(kept[None], expected)
        assert_near(logits_of(model, more, cache=cache), logits_of(model, torch.cat([ids, more], 1))[:, 20:])


def test_invariant_07_packed_documents_equal_separate_runs():
    model, texts = builders.hybrid(plan="anchor-f", conv=2), [tokens(1, n, seed=n) for n in (13, 1, 12, 7)]
    packed, starts = torch.cat(texts, 1), torch.zeros(1, 33, dtype=torch.bool)
    starts[0, [0, 13, 14, 26]] = True
    out = logits_of(model, packed, document_starts=starts)
    assert_near(out, torch.cat([logits_of(model, text) for text in texts], 1))


@pytest.mark.parametrize(
    "options", [{}, {"momentum": True, "muon": True, "row_norm": "post"}, {"row_norm": "pre"}], ids=str
)
def test_invariant_08_a_zero_step_and_a_masked_text_leave_the_start(options):
    model, ids = builders.hybrid(plan="anchor-f", shaken=False, options=options), tokens(2, 40)
    memories = {n: m for n, m in model.named_modules() if isinstance(m, Memory)}
    for memory in memories.values():
        memory.steps.bias.data.fill_(-1e4)
    _, cache = read_by(model, ids, [17, 23])
    for layer, memory in enumerate(memories.values()):
        start, state = memory.start(2), cache.state.slots[f"l{layer}"].weights
        assert all(torch.equal(state[name], start[name]) for name in start)
    cache = model.new_cache()
    logits_of(model, ids, attention_mask=torch.zeros(2, 40), cache=cache)
    assert cache.state.position.tolist() == [0, 0]
    assert all(
        slot.weights is None and not any(t.numel() for t in slot.buffer.values()) for slot in cache.state.slots.values()
    )


def test_invariant_09_short_texts_and_closed_gates_are_the_teacher_to_the_bit():
    """fp32; memory weights as after training in the first case."""
    base, ids = builders.teacher(dtype=torch.float32), tokens(2, 30)
    with torch.no_grad():
        short, long = base(ids[:, :6]).logits, base(ids).logits
    plan = build("anchor-f", builders.shape(), window=6, sinks=2)
    model = builders.shake_memory(AnchorForCausalLM.from_backbone(base, plan))
    assert torch.equal(logits_of(model, ids[:, :6]), short)
    wide = builders.hybrid(plan="anchor-f", dtype=torch.float32, shaken=False, window=30, chunk=6)
    assert torch.equal(logits_of(wide, ids), long)


@pytest.mark.parametrize("length", [5, 6, 7, 40])
def test_invariant_10_a_fresh_hybrid_is_its_window_alone(length):
    model, ids = builders.hybrid(plan="anchor-i", layers=7, shaken=False), tokens(2, length)
    assert torch.equal(logits_of(model, ids), logits_of(model, ids, plan=model.plan.without_slots()))


def test_invariant_11_state_bytes_are_constant_and_equal_the_closed_form():
    """fp32."""
    assert state_bytes(build("anchor", LLAMA_8B), LLAMA_8B)["fast weights"] == 12_582_912
    model = builders.hybrid(plan="anchor-f", dtype=torch.float32, options={"momentum": True})
    expected = state_bytes(model.plan, ModelShape.from_config(model.backbone.config, 4))
    assert expected.pop("full attention per token") == 0
    for length in (11, 35, 179):
        _, cache = read_by(model, tokens(1, length), [length])
        assert cache.nbytes() == {**expected, "full attention": 0}


@pytest.mark.parametrize("loss", ["dot", "squared"])
def test_invariant_12_the_inner_gradient_is_autograds_and_the_outer_one_passes_gradcheck(loss):
    w = [normal(1, 1, *size, seed=s) for s, size in enumerate([(3, 2), (2, 3), (3, 2)])]
    k, v = normal(1, 1, 6, 2, seed=4), normal(1, 1, 6, 2, seed=5)
    steps = [normal(1, 1, 6, 1, seed=s).abs() for s in (6, 7, 8)]
    ours = swiglu.descent(swiglu.Weights(*w), k, v, tuple(steps), loss)
    table = torch.cat(steps, -1)[0, 0]
    theirs = reference.swiglu_descent({n: t[0, 0] for n, t in zip(reference.NAMES, w)}, k[0, 0], v[0, 0], table, loss)
    for name in reference.NAMES:
        assert_near(getattr(ours, name)[0, 0], theirs[name], 1e-13)

    def three_chunks(w0, w1, w2, k, v, e0, e1, e2):
        now = swiglu.Weights(w0, w1, w2)
        for c in range(3):
            part = slice(2 * c, 2 * c + 2)
            e = tuple(0.1 * t[:, :, part] for t in (e0, e1, e2))
            change = swiglu.descent(now, k[:, :, part], v[:, :, part], e, loss)
            now = swiglu.Weights(*(a + b for a, b in zip(now, change)))
        return swiglu.apply(now, k)

    assert torch.autograd.gradcheck(three_chunks, [t.clone().requires_grad_() for t in (*w, k, v, *steps)])


@torch.no_grad()
def test_invariant_13_linear_memory_is_masked_quadratic_attention_over_completed_chunks():
    model, ids = one_layer(rule="linear", map="none", norm=False), tokens(1, 22)
    x, q, k, v = layer_inputs(model, ids)
    a = model.backbone.model.layers[0].self_attn
    writer, reader, positions = a.writers["s"], a.readers["s"], torch.arange(22)[None]
    keys = writer.keys(k.repeat_interleave(2, 1).transpose(0, 1)[None], positions, None)[0]
    queries = reader.queries(q.transpose(0, 1)[None], positions, None)[0]
    values = v.repeat_interleave(2, 1).transpose(0, 1) * writer.value_scale * writer.memory.steps(x).T[..., None]
    seen = torch.arange(22)[None] // 4 < torch.arange(22)[:, None] // 4
    gate = F.silu(x @ reader.gate_weight.T + reader.gate_bias).T[..., None]
    expected = gate * ((queries @ keys.transpose(1, 2)) * seen) @ values
    assert_near(attended(model, ids)[0], expected.transpose(0, 1).flatten(1))


@torch.no_grad()
def test_invariant_14_lag_reads_the_state_of_earlier_chunks_and_gap_formulas_hold():
    """With lag m, block b of one text reads what block b - m reads without lag, given its own queries."""
    plain, ids = one_layer(), tokens(1, 32)
    lagged = one_layer(lag=2)
    lagged.load_state_dict(plain.state_dict())
    caught = []
    for model in (plain, lagged):
        reader = model.backbone.model.layers[0].self_attn.readers["s"]
        handle = reader.register_forward_pre_hook(lambda _, args: caught.append(args[3].runs()))
        logits_of(model, ids)
        handle.remove()
    states = [{run.first // 4: run.state for run in runs} for runs in caught]
    for block in range(2, 8):
        for name, value in states[1][block].items():
            assert torch.equal(value, states[0][block - 2][name])
    for chunk, lag, size in itertools.product([2, 4], [0, 1, 3], [1, 4, 9]):
        near = [set(range(max(0, t - size + 1), t + 1)) for t in range(60)]
        far = [set(range(max(0, t // chunk - lag) * chunk)) for t in range(60)]
        missing = max(len(set(range(t + 1)) - near[t] - far[t]) for t in range(60))
        assert missing == max(0, (lag + 1) * chunk - size)
        assert max(len(near[t] & far[t]) for t in range(60)) == max(0, size - 1 - lag * chunk)
