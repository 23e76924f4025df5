"""Sizes, and plans that never exceed their budget whatever the ranking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlm.analyze.budget import FAVOUR, FULL, HEADS, Need, choose, parse_size
from anchorlm.core import UserError
from anchorlm.describe import state_bytes
from anchorlm.plan import ModelShape, Plan, Reach

SHAPE = ModelShape(layers=12, query_heads=4, kv_heads=2, head_dim=16, hidden=64, vocab=100, max_positions=4096)
WINDOW = Reach("window", 32, 4)
GROWING = "full attention per token"
LAYERS = st.lists(st.integers(0, 11), unique=True, max_size=12)


def need(budget, keep="full", context=256):
    return Need(SHAPE, WINDOW, context, budget, keep)


def added(plan, context=256):
    """Bytes of the plan above those of a window in every layer, full attention counted as so many tokens."""
    parts = state_bytes(plan, SHAPE)
    slots = sum(size for part, size in state_bytes(Plan((WINDOW,) * 12, plan.slots), SHAPE).items() if part != GROWING)
    return context * parts[GROWING] + slots - sum(state_bytes(Plan((WINDOW,) * 12), SHAPE).values())


@given(
    ranked=LAYERS,
    searched=LAYERS,
    heads=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 1)), unique=True),
    budget=st.integers(40_000, 400_000),
    keep=st.sampled_from(
        ("full", "slots", "mixed", "heads", "heads,full", "full,heads", "heads,slots", "full,heads,slots")
    ),
)
def test_the_budget_is_never_exceeded_and_the_plan_is_sound(ranked, searched, heads, budget, keep):
    wanted = need(budget, keep).check()
    choice = choose(wanted, {"window": ranked, "greedy": searched, "heads": heads, "oracle": []})
    assert added(choice.plan) == choice.size <= budget
    full = {(i, h) for i, reach in enumerate(choice.plan.layers) for h in (0, 1) if reach.of(h).kind == "full"}
    layers = {(i, h) for i in choice.placed.get(FULL, []) for h in (0, 1)}
    assert layers | set(choice.placed.get(HEADS, [])) == full
    assert set(choice.placed.get(FULL, [])) <= set(searched) and set(choice.placed.get(HEADS, [])) <= set(heads)
    readers = [layer for slot in choice.plan.slots.values() for layer in slot.read]
    whole = {i for i, reach in enumerate(choice.plan.layers) if reach == Reach()}
    assert set(readers) <= set(ranked) - whole and len(readers) == len(set(readers))
    assert Plan.from_dict(choice.plan.to_dict(), 12) == choice.plan.check(SHAPE)


@given(
    layers=LAYERS,
    heads=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 1)), unique=True),
    kept=st.integers(1, 90),
    budget=st.integers(40_000, 400_000),
    keep=st.sampled_from(("slots", "heads,slots")),
)
def test_kept_tokens_go_to_the_heads_that_need_them_in_as_many_bytes(layers, heads, kept, budget, keep):
    wanted = Need(SHAPE, WINDOW, 256, budget, keep, "kept", kept).check()
    choice = choose(wanted, {"oracle": layers, "heads": heads})
    assert added(choice.plan) == choice.size <= budget
    given = {
        (slot.write, head): slot.rule_options.tokens
        for slot in choice.plan.slots.values()
        for head in slot.taken(SHAPE)
        if choice.plan.layers[slot.write].of(head) == WINDOW
    }
    needy = {tokens for place, tokens in given.items() if place in heads}
    others = {tokens for place, tokens in given.items() if place not in heads}
    assert len(needy) <= 1 and len(others) <= 1
    if needy and others and kept >= FAVOUR:
        assert needy.pop() == FAVOUR * others.pop() and sum(given.values()) <= kept * len(given)
    assert Plan.from_dict(choice.plan.to_dict(), 12) == choice.plan.check(SHAPE)


def test_a_layer_after_some_of_its_heads_costs_the_others_alone():
    head, layer = need(1).size(HEADS), need(1).size(FULL)
    assert 2 * head == layer
    choice = choose(need(layer, "heads,full"), {"heads": [(7, 1)], "greedy": [7, 3]})
    assert choice.placed == {HEADS: [(7, 1)], FULL: [7]} and choice.size == layer
    assert choice.plan.layers[7] == Reach()
    alone = choose(need(head + 1, "heads,full"), {"heads": [(7, 1), (3, 0)], "greedy": [7, 3]})
    assert alone.size == head and alone.plan.layers[7] == Reach("window", 32, 4, heads=((1, Reach()),))


def test_the_best_come_first():
    layer = need(10**6).size(FULL)
    assert layer == 256 * 2 * 2 * 16 * 2
    choice = choose(need(2 * layer + 1), {"greedy": [7, 3, 5]})
    assert choice.placed == {FULL: [7, 3]} and choice.size == 2 * layer


def test_neighbours_share_one_state():
    size = need(10**6, "slots").size("swiglu-ttt")
    choice = choose(need(2 * size, "slots"), {"window": [5, 9, 6, 1]})
    assert {name: slot.read for name, slot in choice.plan.slots.items()} == {"l5": (5, 6), "l9": (9,)}
    assert choice.size == 2 * size and choice.plan.slots["l5"].chunk == 32


def test_mixed_gives_what_is_left_to_slots():
    layer, slot = need(1).size(FULL), need(1, "slots").size("swiglu-ttt")
    rankings = {"greedy": [7, 3], "window": [7, 2]}
    assert choose(need(layer + slot, "mixed"), rankings).placed == {FULL: [7], "swiglu-ttt": [2]}


def test_a_budget_below_one_state_says_the_smallest():
    with pytest.raises(UserError, match="--budget is 1,000 bytes; the smallest state, full in one layer, takes 32,768"):
        need(1000).check()
    with pytest.raises(UserError, match="swiglu-ttt in one layer"):
        need(1000, "slots").check()


@pytest.mark.parametrize(
    "text, size",
    [
        ("2MB", 2_000_000),
        ("590KB", 590_000),
        ("1_000_000", 1_000_000),
        ("1.5 gb", 1_500_000_000),
        (77, 77),
        ("4k", 4000),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "2 TB", "-1MB", "MB", "1e6", "2MB2"])
def test_what_is_no_size(text):
    with pytest.raises(UserError, match="is not a size up to .*; write 2MB, 590KB or 1_000_000"):
        parse_size(text)
