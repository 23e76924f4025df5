"""The invariants that make a hybrid trustworthy, one test each, in float64 unless it says otherwise: 15 to 28.

Many are tested in more depth beside the code they are about; here each stands once, as plainly as it can be put.
"""

import re

import pytest
import torch
from torch.nn import functional as F

import builders
from anchorlm.hf import AnchorForCausalLM
from anchorlm.memory import Memory
from anchorlm.ops import reference, swiglu, window
from anchorlm.ops.rows import Span
from anchorlm.plan import ModelShape, Plan, Reach, Slot
from builders import assert_near, assert_same_state, normal, tokens
from probes import logits_of, one_layer, read_by

pytestmark = pytest.mark.filterwarnings("ignore:.*pad_token_id.*")
LLAMA_8B = ModelShape(32, 32, 8, 128, 4096, 128256, 131072)


def test_invariant_15_query_heads_with_tied_starts_equal_kv_heads():
    ids, models = tokens(2, 30), [one_layer(heads=heads) for heads in ("kv", "q")]
    kv, q = (model.state_dict() for model in models)
    for name, value in kv.items():
        if "writers" not in name:
            q[name] = value
        elif ".steps." in name:
            q[name] = value.unflatten(0, (3, 2)).repeat_interleave(2, 1).flatten(0, 1)
        else:
            q[name] = value.repeat_interleave(2, 0)
    models[1].load_state_dict(q)
    assert_near(logits_of(models[1], ids), logits_of(models[0], ids))


def test_invariant_16_row_norms_hold_over_a_thousand_chunks():
    model = one_layer(chunk=1, options={"row_norm": "post", "step": 0.1})
    _, cache = read_by(model, tokens(1, 1000), [500, 500])
    memory = model.backbone.model.layers[0].self_attn.writers["s"].memory
    for name in reference.NAMES:
        now, start = cache.state.slots["s"].weights[name][0], getattr(memory, name)
        assert_near(now.norm(dim=-1), start.norm(dim=-1), 1e-6)
        assert not torch.allclose(now, start, atol=0.1)


def test_invariant_17_newton_schulz_bounds():
    """fp32: singular values from 0.003 of the norm up end in [0.97, 1.15]; scale-free; zero stays zero."""
    left, right = (torch.linalg.qr(normal(48, 48, seed=s))[0] for s in (1, 2))
    values = torch.logspace(-2.2, 0, 48, dtype=torch.float64)
    m = (left @ torch.diag(values) @ right).float()
    assert float(values.min() / values.norm()) > 0.0015
    out = torch.linalg.svdvals(swiglu.orthogonalise(m))[: int((values >= 0.003 * values.norm()).sum())]
    assert float(out.min()) >= 0.97 and float(out.max()) <= 1.15
    for scale in (1e-5, 1e3):
        assert_near(swiglu.orthogonalise(scale * m), swiglu.orthogonalise(m), 1e-2)
    assert not swiglu.orthogonalise(torch.zeros(4, 3)).any()


def shared(**slot):
    entry = {"write": 0, "read": [0, 1, 3], "chunk": 4, "gap": True} | slot
    plan = {"attention": {"kind": "window", "window": 6, "sinks": 2}, "slots": {"s": entry}}
    return builders.hybrid(plan=Plan.from_dict(plan, 4))


def states_read(model, ids, widths):
    """For every token, the first weight of the state that each layer read there: {layer: [T, ...]}."""
    seen = {}

    def note(layer):
        def hook(_, args):
            for run in args[3].runs():
                weight = next(iter(run.state.values()))[0]
                seen.setdefault(layer, []).extend([weight] * (run.last - run.first))

        return hook

    readers = {
        i: layer.self_attn.readers["s"]
        for i, layer in enumerate(model.backbone.model.layers)
        if layer.self_attn.readers
    }
    handles = [reader.register_forward_pre_hook(note(i)) for i, reader in readers.items()]
    read_by(model, ids, widths)
    for handle in handles:
        handle.remove()
    return {layer: torch.stack(weights) for layer, weights in seen.items()}


def test_invariant_18_leader_and_readers_see_one_version_of_the_state():
    """At every token, boundary tokens above all, in prefill and in decode."""
    model, ids = shared(), tokens(1, 18)
    prefill, decode = states_read(model, ids, [18]), states_read(model, ids, [1] * 18)
    for layer in (0, 1, 3):
        assert torch.equal(prefill[layer], prefill[0])
        assert_near(decode[layer], prefill[0], 1e-12)
    changes = (prefill[0][1:] != prefill[0][:-1]).flatten(1).any(1).nonzero()[:, 0] + 1
    assert changes.tolist() == [4, 8, 12, 16]


def test_invariant_19_a_group_of_one_is_private_and_copies_agree():
    """Anchor's own layers made private one by one, with the parameters of Anchor-F, are Anchor-F."""
    ids = tokens(2, 30)
    every = builders.hybrid(plan="anchor-f")
    groups = {f"g{i}": {"write": i, "read": [i], "chunk": 6} for i in range(4)}
    plan = Plan.from_dict({"attention": {"kind": "window", "window": 6, "sinks": 2}, "slots": groups}, 4)
    grouped = builders.hybrid(plan=plan)
    grouped.load_state_dict(
        {re.sub(r"(writers|readers)\.l", r"\1.g", name): v for name, v in every.state_dict().items()}
    )
    assert torch.equal(logits_of(grouped, ids), logits_of(every, ids))


@pytest.mark.parametrize("kind", ["dense", "cayley", "expm", "planes"])
def test_invariant_20_read_maps_start_as_the_identity_and_turn_properly(kind):
    fresh = builders.hybrid(plan="anchor-f", shaken=False, map={"kind": kind, "planes": 2})
    unit = torch.eye(8, dtype=torch.float64).expand(4, -1, -1)
    read_map = fresh.backbone.model.layers[0].self_attn.readers["l0"].map
    assert_near(read_map.matrix(), unit, 1e-14)
    if kind == "dense":
        return
    builders.shake(dict(read_map.named_parameters()), 1, matrix=0.3, vector=0.3)
    for name, parameter in read_map.named_parameters():
        if "stretch" in name:
            parameter.data.zero_()
    rotation = read_map.float().matrix()
    assert_near(rotation @ rotation.transpose(-1, -2), unit.float(), 1e-5)
    assert_near(torch.linalg.det(rotation), torch.ones(4), 1e-5)


def test_invariant_21_folding_the_map_into_w1_equals_mapping_the_answer():
    model, bare = one_layer(map="dense", norm=False), one_layer(map="none", norm=False)
    weights = model.state_dict()
    change = weights.pop("backbone.model.layers.0.self_attn.readers.s.map.change")
    bare.load_state_dict(weights)
    reader = bare.backbone.model.layers[0].self_attn.readers["s"]

    def fold(module, args):
        attended, x, q, trace, *rest = args
        folded = [s | {"w1": (torch.eye(8, dtype=torch.float64) + change) @ s["w1"]} for s in trace.states]
        return (attended, x, q, type(trace)(trace.rule, trace.chunks, tuple(folded)), *rest)

    reader.register_forward_pre_hook(lambda module, args: fold(module, args[:6]))
    ids = tokens(2, 22)
    assert_near(logits_of(bare, ids), logits_of(model, ids))


@pytest.mark.parametrize("rule", ["swiglu-ttt", "nmm"])
def test_invariant_22_offline_batching_in_groups_of_one_is_the_online_rule(rule):
    """To the bit; a larger group takes its gradients elsewhere from its second chunk on, whatever the calls."""
    ids, online = tokens(1, 26), one_layer(rule=rule)
    single, double = (one_layer(rule=rule, options={"group": n}) for n in (1, 2))
    for model in (single, double):
        model.load_state_dict(online.state_dict())
    by_chunk, cache = read_by(single, ids, [4] * 6 + [2])
    whole, at_once = read_by(online, ids, [26])
    assert torch.equal(logits_of(single, ids), whole)
    assert_near(by_chunk, whole, 1e-12)
    assert_same_state(cache.state, 0, at_once.state, 0, online.plan, 1e-12)
    grouped, _ = read_by(double, ids, [26])
    assert torch.equal(grouped[:, :8], whole[:, :8]) and not torch.allclose(grouped[:, 8:], whole[:, 8:], atol=1e-6)
    assert_near(read_by(double, ids, [3, 1, 9, 2, 11])[0], grouped, 1e-12)


@torch.no_grad()
def test_invariant_23_segments_and_history_by_exact_shares_are_full_attention():
    """lam = Z_hist / (Z_hist + Z_local) joins them; in segment 0 nothing was written and the share is zero."""
    q, k, v = (normal(1, 2, 21, 6, seed=s) for s in (1, 2, 3))
    span, scores = Span((0,), (21,), 21), q @ k.transpose(-1, -2)
    local = window.attend(q, k, v, Reach("segment", segment=5), span, 1.0)
    t, j = torch.arange(21)[:, None], torch.arange(21)[None]
    past, present = (j < t // 5 * 5), (j >= t // 5 * 5) & (j <= t)
    z_past, z_local = ((scores.exp() * m).sum(-1, keepdim=True) for m in (past, present))
    history = (scores.exp() * past) @ v / z_past.clamp(min=1e-300)
    share = z_past / (z_past + z_local)
    assert not share[:, :, :5].any()
    assert_near((1 - share) * local + share * history, window.attend(q, k, v, Reach(), span, 1.0))
    base, ids = builders.teacher(dtype=torch.float32), tokens(2, 12)
    expected = base(ids[:, :6]).logits
    plan = {"attention": {"kind": "segment", "segment": 6}, "slots": {"s": {"write": 0, "chunk": 6, "mix": "convex"}}}
    model = builders.shake_memory(AnchorForCausalLM.from_backbone(base, Plan.from_dict(plan, 4)))
    assert torch.equal(logits_of(model, ids[:, :6]), expected)
    assert not torch.equal(logits_of(model, ids), logits_of(model, ids, plan=model.plan.without_slots()))


def test_invariant_24_reordered_restored_and_reset_rows_and_beams():
    model, ids, more = builders.hybrid(plan="anchor-f"), tokens(3, 20), tokens(3, 15, seed=9)
    _, cache = read_by(model, ids, [20])
    saved = cache.snapshot()
    first = logits_of(model, more, cache=cache)
    cache.restore(saved)
    cache.reorder_cache(torch.tensor([1, 2, 0]))
    assert_near(logits_of(model, more[[1, 2, 0]], cache=cache), first[[1, 2, 0]])
    cache.restore(saved)
    cache.reset([1])
    after = logits_of(model, more, cache=cache)
    assert_near(after[[0, 2]], first[[0, 2]])
    assert_near(after[1], logits_of(model, more[1:2])[0])
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    both = model.generate(ids[:2], attention_mask=torch.ones_like(ids[:2]), **options)
    alone = [model.generate(ids[i : i + 1], attention_mask=torch.ones(1, 20), **options) for i in range(2)]
    assert torch.equal(both, torch.cat(alone))


def test_invariant_25_a_saved_model_comes_back_whole(tmp_path):
    """fp32: same tensors and logits, none on meta, none drawn anew."""
    model, ids = (
        builders.hybrid("qwen3", plan="anchor-f", dtype=torch.float32, options={"momentum": True}),
        tokens(2, 30),
    )
    model.save_pretrained(tmp_path)
    again = AnchorForCausalLM.from_pretrained(tmp_path)
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
    assert not any(p.is_meta for p in again.parameters())
    assert torch.equal(logits_of(again, ids), logits_of(model, ids))


def test_invariant_26_bf16_drift_is_bounded_and_backends_agree_on_the_window():
    """A bf16 backbone with its fp32 state against float64, over 64 chunks; and the dense mask of other backends."""
    exact = builders.hybrid(plan="anchor-f", layers=2, chunk=4)
    rough = builders.hybrid(plan="anchor-f", layers=2, chunk=4, dtype=torch.bfloat16)
    ids = tokens(1, 256)
    _, far = read_by(exact.requires_grad_(False), ids, [256])
    _, near = read_by(rough, ids, [256])
    for name in ("l0", "l1"):
        for part, value in near.state.slots[name].weights.items():
            assert value.dtype == torch.float32
            start = getattr(exact.backbone.model.layers[int(name[1])].self_attn.writers[name].memory, part)
            true = far.state.slots[name].weights[part][0]
            assert float((value[0].double() - true).norm() / (true - start).norm()) < 0.2
    q, k, v = (normal(1, 2, 40, 6, seed=s) for s in (1, 2, 3))
    places = torch.arange(40)[None]
    mask = window.visible(places, places, Reach("window", 7))
    assert mask[0].sum(1).tolist() == [min(t + 1, 7) for t in range(40)]
    sdpa = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], scale=0.4)
    assert_near(window.attend(q, k, v, Reach("window", 7), Span((0,), (40,), 40), 0.4), sdpa, 1e-12)


@pytest.mark.parametrize("gone", ["head", "tail"])
def test_invariant_27_removing_a_slot_with_a_closed_gate_changes_nothing(gone):
    model, ids = builders.hybrid(plan="anchor", layers=7), tokens(2, 30)
    kept = [name for name in model.plan.slots if name != gone]
    reduced = model.plan.select_slots(kept)
    assert not torch.equal(logits_of(model, ids, plan=reduced), logits_of(model, ids))
    for layer in model.plan.slots[gone].read:
        reader = model.backbone.model.layers[layer].self_attn.readers[gone]
        reader.gate_weight.data.zero_()
        reader.gate_bias.data.zero_()
    assert torch.equal(logits_of(model, ids, plan=reduced), logits_of(model, ids))


def test_invariant_28_the_first_chunk_outlives_sixteen_more():
    """fp32, default rule and chunk: planted pairs of chunk 0 beat more distractors than the half that chance gives."""
    options, dim, heads = Slot(0, (0,)).rule_options, 64, 2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        memory = Memory.rules[Slot.rule](options, heads, dim, 5)
    state, pairs = memory.start(1), []
    with torch.no_grad():
        for n in range(17):
            k = F.normalize(normal(1, heads, Slot.chunk, dim, seed=2 * n, dtype=torch.float32), dim=-1)
            pairs.append(
                (options.key_length(dim) * k, normal(1, heads, Slot.chunk, dim, seed=2 * n + 1, dtype=torch.float32))
            )
            state = memory.write(state, *pairs[n], memory.tokens(torch.zeros(1, Slot.chunk, 5)))
        answers = F.normalize(memory.read(memory.readable(state), pairs[0][0]).answer, dim=-1)
    scores = answers @ F.normalize(pairs[0][1], dim=-1).transpose(-1, -2)
    assert float((scores < scores.diagonal(dim1=-2, dim2=-1)[..., None]).float().mean()) > 0.6
