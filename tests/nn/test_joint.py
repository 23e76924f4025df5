"""A layer that reads kept tokens, projections, norms, RoPE and chunks included, against the token loop."""

import pytest
import torch

import builders
from anchorlm.core import UserError
from anchorlm.hf import Captures
from anchorlm.ops import reference
from anchorlm.ops.window import rotate
from anchorlm.plan import Plan
from builders import assert_near

WINDOW, SINKS, LENGTH = 6, 2, 29
CASES = {
    "gate": {"options": {"tokens": 3}},
    "many": {"options": {"tokens": 40}},
    "lag": {"lag": 1, "chunk": 3, "options": {"tokens": 4}},
    "recent": {"options": {"tokens": 4, "choose": "recent"}},
    "key-norm": {"options": {"tokens": 4, "choose": "key-norm"}},
    "decay": {"options": {"tokens": 4, "choose": "decay"}},
    "true-places": {"options": {"tokens": 5, "positions": "true"}},
    "query-heads": {"heads": "q", "options": {"tokens": 3}},
    "chunk-of-one": {"chunk": 1, "options": {"tokens": 4}},
    "a-full-head": {"options": {"tokens": 3}, "full": 1},
    "follow": {"options": {"tokens": 4, "follow": 0.02}},
    "follow-chunk-of-one": {"chunk": 1, "options": {"tokens": 4, "follow": 0}},
    "follow-lag-of-one-head": {"lag": 1, "chunk": 3, "heads": [1], "options": {"tokens": 4, "follow": 0.1}},
    "one-head": {"heads": [1], "options": {"tokens": 3}},
    "one-head-key-norm": {"heads": [0], "options": {"tokens": 4, "choose": "key-norm"}},
    "one-head-beside-a-full-one": {"heads": [0], "options": {"tokens": 3}, "full": 1},
    "a-full-head-true-places": {"options": {"tokens": 5, "positions": "true"}, "full": 0},
}


def model_of(case, family="llama"):
    entry = {"rule": "kept", "chunk": 4, "write": 0} | CASES[case]
    heads = {head: "full" for head in (entry.pop("full", None),) if head is not None}
    plan = {"attention": {"kind": "window", "window": WINDOW, "sinks": SINKS, "heads": heads}, "slots": {"s": entry}}
    return builders.hybrid(family, Plan.from_dict(plan, 2), layers=2)


def by_loop(model, x):
    """[T, Hq d] of the first layer for one row x [T, D], its normalised input."""
    attention, slot = model.backbone.model.layers[0].self_attn, model.plan.slots["s"]
    memory, options = attention.writers["s"].memory, slot.rule_options
    q, k, v = (u[0] for u in attention.project(x[None]))
    taken = slot.taken(model.shape)
    scores = memory.tokens(x[None], k[list(taken)].transpose(0, 1)[None])["score"][0]
    cos, sin = model.backbone.model.rotary_emb(x[None], torch.arange(LENGTH + 60)[None])

    def turn(u, place):
        at = slice(place, place + 1)
        return rotate(u[None, None, None], cos[:, at], sin[:, at])[0, 0, 0]

    outputs = []
    for head in range(q.shape[0]):
        group = head // (q.shape[0] // k.shape[0])
        reach = model.plan.layers[0].of(group)
        if reach != model.plan.layers[0].own or group not in taken:
            outputs.append(reference.attention(q[head], k[group], v[group], reach, attention.scale, turn))
            continue
        among = taken.index(group) * (q.shape[0] // k.shape[0]) + head % (q.shape[0] // k.shape[0])
        state = among // (len(taken) * (q.shape[0] // k.shape[0]) // attention.writers["s"].heads)
        mine = scores[:, state]
        if options.follow is not None:
            mine = torch.cat([mine[:1], torch.maximum(mine[1:], mine[:-1] - options.follow)])

        worth = mine.tolist()

        def rank(j, newest, worth=worth):
            return {"recent": float(j), "decay": worth[j] * (newest - j + 1)}.get(options.choose, worth[j])

        def kept(t, rank=rank):
            written = max(0, t // slot.chunk - slot.lag) * slot.chunk
            return reference.kept_tokens(rank, written, slot.chunk, options.tokens)

        bonus = 0 if memory.bonus is None else memory.bonus[state]
        compact = options.tokens if options.positions == "compact" else None
        given = (q[head], k[group], v[group], model.plan.layers[0], attention.scale, kept, turn)
        outputs.append(reference.kept_attention(*given, bonus * mine, compact))
    return torch.stack(outputs, 1).flatten(1)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("case", CASES)
def test_a_layer_with_kept_tokens_equals_the_token_loop(case, family):
    model, captures = model_of(case, family), Captures()
    ids = builders.tokens(1, LENGTH)
    model(ids, captures=captures)
    first = model.backbone.model.layers[0]
    x = first.input_layernorm(model.backbone.model.embed_tokens(ids))[0]
    theirs = by_loop(model, x)
    assert_near(captures.outputs[0][0], theirs, 1e-10)
    parameters = [p for n, p in model.memory_parameters().items() if "memory" in n]
    if parameters:
        ours, wanted = (
            torch.autograd.grad(y.square().sum(), parameters, retain_graph=True)
            for y in (captures.outputs[0][0], theirs)
        )
        for a, b in zip(ours, wanted, strict=True):
            assert_near(a, b, 1e-9)


@torch.no_grad()
def test_keeping_everything_behind_the_window_is_full_attention_where_places_are_true():
    """M as large as the text, true positions, no bonus: window, sinks and kept tokens are all that there is."""
    entry = {"rule": "kept", "chunk": 1, "write": 0, "options": {"tokens": 64, "positions": "true", "choose": "recent"}}
    reach = {"kind": "window", "window": WINDOW, "sinks": 0}
    hybrid = builders.hybrid("llama", Plan.from_dict({"attention": reach, "slots": {"s": entry}}, 2), layers=2)
    ids, ours, theirs = builders.tokens(2, LENGTH), Captures(), Captures()
    hybrid(ids, captures=ours)
    hybrid(ids, captures=theirs, plan=hybrid.plan.teacher())
    assert_near(ours.outputs[0], theirs.outputs[0], 1e-11)


@torch.no_grad()
def test_recent_tokens_are_a_wider_window():
    """Kept by recency, at true places, chunk 1: what a window larger by M sees."""
    entry = {"rule": "kept", "chunk": 1, "write": 0, "options": {"tokens": 9, "positions": "true", "choose": "recent"}}
    reach = {"kind": "window", "window": WINDOW, "sinks": 0}
    hybrid = builders.hybrid("llama", Plan.from_dict({"attention": reach, "slots": {"s": entry}}, 2), layers=2)
    wide = builders.hybrid("llama", "swa", layers=2, window=10, sinks=0)
    ids, ours, theirs = builders.tokens(1, LENGTH), Captures(), Captures()
    hybrid(ids, captures=ours)
    wide(ids, captures=theirs)
    assert_near(ours.outputs[0], theirs.outputs[0], 1e-11)


@pytest.mark.parametrize(
    "values,said",
    [
        ({"options": {"tokens": 251}}, "tokens is 251; with window 6 at most 250 fit the 256 positions"),
        ({"chunk": 2, "options": {"tokens": 4, "choose": "recent"}}, "tokens is 4; .* take at least 5"),
    ],
)
def test_a_slot_that_could_not_be_read_is_refused(values, said):
    entry = {"rule": "kept", "chunk": 4, "write": 0} | values
    reach = {"kind": "window", "window": WINDOW, "sinks": SINKS}
    with pytest.raises(UserError, match=said):
        builders.hybrid("llama", Plan.from_dict({"attention": reach, "slots": {"s": entry}}, 2), layers=2)


def test_slots_of_single_heads_are_one_slot_of_all_when_they_hold_alike():
    """Two slots in a layer, a head each, chosen by the key norm, for which nothing is learned."""
    options = {"tokens": 4, "choose": "key-norm"}
    entries = [
        {"rule": "kept", "chunk": 4, "write": 0, "heads": heads, "options": options} for heads in ([0], [1], "kv")
    ]
    plans = [{"attention": {"kind": "window", "window": WINDOW, "sinks": SINKS}, "slots": slots} for slots in
             ({"a": entries[0], "b": entries[1]}, {"s": entries[2]})]  # fmt: skip
    single, whole = (builders.hybrid("llama", Plan.from_dict(plan, 2), layers=2) for plan in plans)
    ids = builders.tokens(2, LENGTH)
    assert_near(single(ids).logits, whole(ids).logits, 1e-10, "logits")


def test_heads_that_a_slot_does_not_take_are_left_as_they_are():
    model, captures = model_of("one-head"), (Captures(), Captures())
    ids = builders.tokens(1, LENGTH)
    model(ids, captures=captures[0])
    model(ids, captures=captures[1], plan=model.plan.without_slots())
    kept, bare = (c.outputs[0].unflatten(-1, (model.shape.kv_heads, -1)) for c in captures)
    assert_near(kept[:, :, 0], bare[:, :, 0], 1e-12, "the other head")
    assert not torch.allclose(kept[:, :, 1], bare[:, :, 1])
