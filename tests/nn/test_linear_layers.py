"""Whole layers of LoLCATs, Liger and Lizard, projections, norms and RoPE included, against loops over tokens."""

import pytest
import torch

import builders
from anchorlm.hf import Captures
from anchorlm.ops import reference_linear as reference
from anchorlm.ops.window import rotate
from anchorlm.plan import Plan
from builders import assert_near

WINDOW, CHUNK = 5, 4
LENGTHS = [1, CHUNK - 1, CHUNK, CHUNK + 1, 23]
LOLCATS = {"rule": "hedgehog", "options": {"width": 6}}
LIGER = {"rule": "gla"}
LIZARD = {
    "rule": "hedgehog", "heads": "kv", "lag": "self", "rope": "none", "mix": "sum",
    "options": {"width": 6, "gate": "scalar", "gate_start": 0.8},
}  # fmt: skip
SLIDING, TERRACE = {"kind": "window", "window": WINDOW}, {"kind": "terrace", "window": WINDOW}
CASES = {
    "lolcats": (SLIDING, LOLCATS),
    "lolcats-affine-kv": (SLIDING, LOLCATS | {"heads": "kv", "mix": {"kind": "shared", "affine": True}}),
    "terrace": (TERRACE, LOLCATS),
    "liger": (SLIDING, LIGER),
    "liger-hgrn2": (SLIDING, LIGER | {"options": {"variant": "hgrn2", "temperature": 3.0}}),
    "liger-scalar": (SLIDING, LIGER | {"heads": "q", "options": {"variant": "scalar", "temperature": 2.0}}),
    "liger-gsa": (SLIDING, LIGER | {"rule": "gsa", "options": {"slots": 3, "temperature": 4.0}}),
    "lizard": (SLIDING | {"positions": "none", "meta": 3}, LIZARD),
    "lizard-exp": (SLIDING | {"positions": "none"}, LIZARD | {"options": LIZARD["options"] | {"features": "exp"}}),
}


def model_of(case, family="llama"):
    reach, slot = CASES[case]
    plan = {"attention": reach, "slots": {"s": slot | {"write": 0, "chunk": CHUNK}}}
    return builders.hybrid(family, Plan.from_dict(plan, 2), layers=2)


def first_seen(reach, t):
    back = t - reach["window"] + 1 if reach["kind"] == "window" else (t // reach["window"] - 1) * reach["window"]
    return max(0, back)


def turned(model, x, u):
    cos, sin = model.backbone.model.rotary_emb(x[None], torch.arange(x.shape[0])[None])
    return rotate(u[None], cos, sin)[0]


def by_loop(model, case, x):
    """[T, Hq d] of the first layer for one row x [T, D], its normalised input."""
    reach, _ = CASES[case]
    attention = model.backbone.model.layers[0].self_attn
    q, k, v = (u[0] for u in attention.project(x[None]))
    heads, group = q.shape[0], q.shape[0] // k.shape[0]
    bare = (q, k)
    if reach.get("positions") != "none":
        q, k = turned(model, x, q), turned(model, x, k)
    outputs = []
    for head in range(heads):
        near, kv = (q[head], k[head // group], v[head // group]), (bare[0][head], bare[1][head // group])
        outputs.append(LOOPS[model.plan.slots["s"].rule](model, reach, x, head, near, kv))
    return torch.stack(outputs, 1).flatten(1)


def windowed(reach, q, k, v, scale, extra=0.0):
    outputs = []
    for t in range(len(q)):
        seen = range(first_seen(reach, t), t + 1)
        scores = torch.stack([(q[t] * k[j]).sum() * scale for j in seen])
        weights = torch.exp(scores)
        outputs.append((weights[:, None] * v[list(seen)]).sum(0) / (weights.sum() + extra))
    return torch.stack(outputs)


def hedgehog(model, reach, x, head, near, bare):
    attention, slot = model.backbone.model.layers[0].self_attn, model.plan.slots["s"]
    writer, reader = attention.writers["s"], attention.readers["s"]
    state_head, kind = head // (4 // writer.heads), slot.rule_options.features
    q, k, v = near
    maps = reader.queries.weight[head], writer.keys.weight[state_head]
    features = [torch.stack([reference.hedgehog(u, w, kind) for u in part]) for part, w in zip((q, k), maps)]
    if slot.mix.kind == "shared":
        share = torch.sigmoid(reader.gate_share[head])
        rest = 1 - share if slot.mix.affine else 1.0
        return reference.shared_normaliser(
            q, k, v, lambda t: first_seen(reach, t), features, share, rest, attention.scale
        )
    gates = torch.sigmoid(x @ writer.memory.fade_weight[0] + writer.memory.fade_bias)
    values = torch.cat([v, torch.ones_like(v[:, :1])], 1)
    start = torch.zeros(features[0].shape[1], values.shape[1], dtype=v.dtype)
    states = reference.decayed_states(start, features[1], values, gates[:, None].expand(-1, len(start)))
    read = torch.stack([f @ s for f, s in zip(features[0], states[1:])])
    meta = 0.0 if attention.meta_logits is None else torch.exp(attention.meta_logits.logits).sum()
    local = windowed(reach, q, k, v, attention.scale, meta)
    return read[:, :-1] / read[:, -1:] + reader.gate_attention[head] * local


def gla(model, reach, x, head, near, bare):
    attention, options = model.backbone.model.layers[0].self_attn, model.plan.slots["s"].rule_options
    (q, k), v = bare, near[2]
    logits = k.mean(1, keepdim=True).expand_as(k) if options.variant == "scalar" else k
    gates = torch.sigmoid(logits) ** (1 / options.temperature)
    keys = 1 - gates if options.variant == "hgrn2" else torch.softmax(k, -1)
    states = reference.decayed_states(torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), keys, v, gates)
    read = torch.stack([f @ s for f, s in zip(torch.softmax(q, -1), states[1:])])
    return 0.5 * read + 0.5 * windowed(reach, *near, attention.scale)


def gsa(model, reach, x, head, near, bare):
    attention, options = model.backbone.model.layers[0].self_attn, model.plan.slots["s"].rule_options
    (q, k), v = bare, near[2]
    edges = [(i * k.shape[1] // 3, -(-(i + 1) * k.shape[1] // 3)) for i in range(options.slots)]
    pooled = torch.stack([k[:, a:b].mean(1) for a, b in edges], 1)
    gates = torch.sigmoid(pooled) ** (1 / options.temperature)
    start = (torch.zeros(3, k.shape[1], dtype=k.dtype), torch.zeros(3, v.shape[1], dtype=v.dtype))
    states = reference.slot_states(start, k, v, gates)
    read = torch.stack([reference.slot_answer(s, u, attention.scale) for s, u in zip(states[1:], q)])
    return 0.5 * read + 0.5 * windowed(reach, *near, attention.scale)


LOOPS = {"hedgehog": hedgehog, "gla": gla, "gsa": gsa}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_a_layer_equals_the_token_loop_in_values_and_gradients(case, length):
    for family in ("llama", "qwen3") if length == LENGTHS[-1] else ("llama",):
        model, captures, ids = model_of(case, family), Captures(), builders.tokens(1, length)
        model(ids, captures=captures)
        x = captures.inputs[0][0]
        theirs = by_loop(model, case, x)
        assert_near(captures.outputs[0][0], theirs, 1e-10)
        first = {n: p for n, p in model.memory_parameters().items() if ".layers.0." in n}
        leaves = [*first.values(), model.backbone.model.layers[0].self_attn.k_proj.weight]
        weights = builders.normal(*theirs.shape, seed=4)
        grads = [
            torch.autograd.grad((y * weights).sum(), leaves, retain_graph=True, allow_unused=True)
            for y in (captures.outputs[0][0], theirs)
        ]
        for leaf, a, b in zip(leaves, *grads, strict=True):
            zero = torch.zeros_like(leaf)
            assert_near(zero if a is None else a, zero if b is None else b, 1e-8)


@torch.no_grad()
@pytest.mark.parametrize("case", ["lolcats", "terrace"])
def test_a_text_that_fits_is_the_teacher_to_the_bit_whatever_the_share(case):
    model = model_of(case)
    ids, ours, theirs = builders.tokens(2, WINDOW), Captures(), Captures()
    model(ids, captures=ours)
    model(ids, captures=theirs, plan=model.plan.teacher())
    assert torch.equal(ours.outputs[1], theirs.outputs[1])


@torch.no_grad()
def test_lolcats_weights_are_a_partition_that_sums_to_one():
    """Values that are all one come back as one: no token is counted twice and none is left out."""
    for case in ("lolcats", "terrace", "lolcats-affine-kv"):
        model = model_of(case)
        attention = model.backbone.model.layers[0].self_attn
        attention.v_proj.weight.zero_()
        attention.v_proj.register_forward_hook(lambda _, args, out: torch.ones_like(out))
        captures = Captures()
        model(builders.tokens(1, 4 * WINDOW + 3), captures=captures)
        assert_near(captures.outputs[0], torch.ones_like(captures.outputs[0]), 1e-12)


@torch.no_grad()
def test_lizard_does_not_know_where_it_is():
    """Other angles change nothing, while Liger's window depends on how far apart two tokens are."""
    ids = builders.tokens(1, 17)
    for case, blind in (("lizard", True), ("liger", False)):
        model = model_of(case)
        rotary, before = model.backbone.model.rotary_emb, model(ids).logits
        rotary.register_forward_pre_hook(lambda _, args: (args[0], 3 * args[1] + 40))
        assert torch.equal(model(ids).logits, before) == blind


@torch.no_grad()
def test_meta_logits_close_and_open_the_window():
    """At minus infinity a plain window, at a high logit nothing of it is left."""
    model, ids = model_of("lizard"), builders.tokens(1, 14)
    attention = model.backbone.model.layers[0].self_attn
    attention.readers["s"].gate_attention.fill_(1.0)

    def first_output():
        captures = Captures()
        model(ids, captures=captures)
        return captures.outputs[0]

    attention.meta_logits.logits.fill_(-1e4)
    plain = first_output()
    attention.meta_logits.logits.fill_(1e4)
    closed = first_output()
    captures = Captures()
    window = Plan.from_dict({"attention": {"kind": "window", "window": WINDOW, "positions": "none"}}, 2)
    model(ids, captures=captures, plan=window)
    assert_near(plain - closed, captures.outputs[0], 1e-10)
