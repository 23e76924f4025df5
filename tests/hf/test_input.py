"""Padding, packing and wrong input at the model: what is refused says what was given and what is allowed."""

from dataclasses import replace

import pytest
import torch

import builders
from builders import SLOT_KINDS, assert_near, assert_same_state

PLANS = {
    "default": {},
    "lag": SLOT_KINDS["lag"],
    "conv": SLOT_KINDS["conv"],
    "muon": SLOT_KINDS["muon"],
    "chunk-rope": SLOT_KINDS["chunk-rope-silu"],
}


def model_of(kind="default"):
    return builders.hybrid(plan="anchor-f", gap=True, **PLANS[kind])


def read(model, ids, **options):
    cache = model.new_cache()
    return model(ids, cache=cache, **options).logits, cache.state


@torch.no_grad()
def test_a_cache_of_a_narrower_plan_is_refused_by_a_wider_one():
    """What was dropped cannot be seen again; the other way round, and while nothing was dropped, all is well."""
    model, ids = builders.hybrid(plan="swa"), builders.tokens(1, 20)
    wide, bare = _other_windows(model.plan)
    teacher = model.plan.teacher()
    for filled, used, word in ((model.plan, wide, "tokens"), (wide, teacher, "tokens"), (bare, model.plan, "sinks")):
        cache = model.new_cache()
        model(ids, cache=cache, plan=filled)
        with pytest.raises(ValueError, match=f"narrower plan: layer 0 holds .* {word}"):
            model(ids, cache=cache, plan=used)
    cache, short = model.new_cache(), model.new_cache()
    model(ids, cache=cache, plan=teacher)
    model(ids, cache=cache, plan=bare)
    model(ids[:, :3], cache=short)
    assert_near(model(ids[:, 3:], cache=short, plan=wide).logits, model(ids, plan=wide).logits[:, 3:])


def _other_windows(plan):
    """A window wider by four, and the same window without sinks."""
    own = plan.layers[0]
    reaches = (replace(own, window=own.window + 4), replace(own, sinks=0))
    return [replace(plan, layers=(reach,) * len(plan.layers)) for reach in reaches]


def test_plain_tuples_are_refused_instead_of_ignored():
    model = model_of()
    with pytest.raises(TypeError, match="return_dict=False is not supported"):
        model(builders.tokens(1, 4), return_dict=False)
    assert model(builders.tokens(1, 4), return_dict=True).logits.shape[1] == 4


@pytest.mark.parametrize("kind", PLANS)
@torch.no_grad()
def test_a_masked_token_is_a_no_op_on_every_state(kind):
    """[a b PAD c] leaves what [a b c] leaves, to the bit, whatever stands under the mask."""
    model, text = model_of(kind), builders.tokens(1, 23)
    expected, state = read(model, text)
    for hole in (0, 1, 6, 13, 23):
        for width in (1, 5, 9):
            noise = builders.tokens(1, width, seed=hole + width)
            ids = torch.cat([text[:, :hole], noise, text[:, hole:]], 1)
            mask = torch.ones_like(ids)
            mask[:, hole : hole + width] = 0
            logits, after = read(model, ids, attention_mask=mask)
            assert_near(logits[mask.bool()], expected[0], 1e-12)
            assert_same_state(after, 0, state, 0, model.plan, 0.0)


@pytest.mark.parametrize("kind", PLANS)
@torch.no_grad()
def test_the_other_rows_of_a_batch_change_nothing(kind):
    model, ids = model_of(kind), builders.tokens(3, 29)
    mask = torch.ones_like(ids)
    mask[1, :8], mask[2, 20:] = 0, 0
    together, state = read(model, ids, attention_mask=mask)
    changed = torch.where(torch.arange(3)[:, None] == 0, ids, builders.tokens(3, 29, seed=8))
    again, after = read(model, changed, attention_mask=mask)
    assert torch.equal(together[0], again[0])
    assert_same_state(state, 0, after, 0, model.plan, 0.0)
    for row in range(3):
        alone, own = read(model, ids[row][mask[row].bool()][None])
        assert_near(together[row][mask[row].bool()], alone[0], 1e-11)
        assert_same_state(state, row, own, 0, model.plan, 1e-11)


@torch.no_grad()
def test_a_row_of_nothing_but_padding_keeps_its_state():
    model, ids = model_of(), builders.tokens(2, 9)
    cache = model.new_cache()
    model(ids, cache=cache)
    before = cache.snapshot()[0]
    mask = torch.tensor([[0, 0, 0], [1, 1, 0]])
    model(builders.tokens(2, 3, seed=7), attention_mask=mask, cache=cache)
    assert cache.state.position.tolist() == [9, 11]
    assert_same_state(cache.state, 0, before, 0, model.plan, 0.0)


@pytest.mark.parametrize("block", [1, 4, 7, 64])
@torch.no_grad()
def test_the_block_of_a_long_text_changes_nothing(block):
    model, ids = model_of("conv"), builders.tokens(2, 50)
    mask, starts = torch.ones_like(ids), torch.zeros_like(ids).bool()
    mask[0, 11:14], mask[1, 40:], starts[0, 20], starts[1, 3] = 0, 0, True, True
    whole, state = read(model, ids, attention_mask=mask, document_starts=starts)
    parts, after = read(model, ids, attention_mask=mask, document_starts=starts, block=block)
    assert_near(parts, whole, 1e-11)
    for row in range(2):
        assert_same_state(after, row, state, row, model.plan, 1e-11)


@torch.no_grad()
def test_prefill_reads_in_blocks_and_reports_its_progress():
    model, ids, seen = model_of(), builders.tokens(2, 50), []
    logits, cache = model.prefill(ids, block=16, progress=seen.append)
    assert seen == [16, 32, 48, 50]
    expected, state = read(model, ids)
    assert_near(logits, expected[:, -1], 1e-11)
    assert_same_state(cache.state, 1, state, 1, model.plan, 1e-11)
    assert cache.tokens == 50


@torch.no_grad()
def test_only_the_wanted_logits_are_made():
    model, ids = model_of(), builders.tokens(2, 9)
    logits = model(ids).logits
    assert_near(model(ids, logits_to_keep=1).logits, logits[:, -1:], 1e-12)
    assert_near(model(ids, logits_to_keep=torch.tensor([2, 5])).logits, logits[:, [2, 5]], 1e-12)


def test_the_loss_is_the_mean_over_labels_that_count():
    model, ids = model_of(), builders.tokens(2, 12)
    labels = ids.clone()
    labels[0, :7], labels[1, 3] = -100, -100
    logits = torch.log_softmax(model(ids).logits[:, :-1], -1)
    kept = labels[:, 1:] != -100
    expected = -logits.gather(2, ids[:, 1:, None])[..., 0][kept].mean()
    assert_near(model(ids, labels=labels).loss.double(), expected, 1e-6)


@torch.no_grad()
def filled(model, ids):
    """A cache after a text under the model's own plan."""
    cache = model.new_cache()
    model(ids, cache=cache)
    return cache


WRONG = {
    "mask of another batch": (
        lambda m, i: m(i, attention_mask=torch.tensor([[0] + [1] * 8])),
        r"\(1, 9\); it must be \[2, at least 9\]",
    ),
    "mask too short": (lambda m, i: m(i, attention_mask=torch.ones(2, 5)), r"\(2, 5\); it must be \[2, at least 9\]"),
    "4-d mask": (lambda m, i: m(i, attention_mask=torch.ones(2, 1, 9, 9)), r"it must be \[2, at least 9\]"),
    "starts of another width": (
        lambda m, i: m(i, document_starts=torch.ones(2, 4).bool()),
        r"\(2, 4\); it must be \(2, 9\)",
    ),
    "no token": (lambda m, i: m(i[:, :0]), "no token"),
    "no token to prefill": (lambda m, i: m.prefill(i[:, :0]), "the text is empty"),
    "both inputs": (lambda m, i: m(i, inputs_embeds=torch.zeros(2, 9, 32)), "exactly one"),
    "neither input": (lambda m, i: m(), "exactly one"),
    "one axis": (lambda m, i: m(i[0]), r"input_ids has shape \(9,\); it must be \[B, T\]"),
    "no block": (lambda m, i: m(i, block=0), "block is 0"),
    "a shallower cache": (lambda m, i: m(i, cache=filled(builders.hybrid(plan="swa", layers=2), i)), "holds 2 layers"),
    "a cache without slots": (lambda m, i: m(i, cache=filled(builders.hybrid(plan="swa"), i)), "without the slot"),
    "right padding in generate": (
        lambda m, i: m.generate(i, attention_mask=(torch.arange(9) < 5).long().expand(2, 9), max_new_tokens=3),
        "pad on the left",
    ),
    "positions that disagree": (lambda m, i: m(i, position_ids=torch.arange(3, 12)[None]), "position_ids disagree"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused(name):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call(model_of(), builders.tokens(2, 9))


@pytest.mark.parametrize(
    "option", [{"window": 3}, {"output_attentions": True}, {"output_hidden_states": True}], ids=str
)
def test_an_option_that_would_be_ignored_is_refused(option):
    with pytest.raises(TypeError, match=f"no argument '{next(iter(option))}'"):
        model_of()(builders.tokens(1, 3), **option)


@pytest.mark.parametrize("step", [0.02, 0.2])
@torch.no_grad()
def test_one_token_repeated_for_hundreds_of_chunks_stays_finite(step):
    """Ten and a hundred times the default step, on the text that resonates most."""
    model = builders.hybrid(plan="anchor-f", dtype=torch.float32, options={"step": step})
    logits, state = read(model, torch.full((1, 3000), 7))
    assert bool(torch.isfinite(logits).all())
    assert all(float(t.abs().max()) < 50 for slot in state.slots.values() for t in slot.weights.values())
