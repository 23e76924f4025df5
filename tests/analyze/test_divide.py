"""Kept tokens over the layers: each way fills the budget and no more; one is taken where it is clearly better."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlm.analyze.budget import Choice, Need
from anchorlm.analyze.divide import FEW, WAYS, Division, _choice, _filled, best
from anchorlm.analyze.tables import placed
from anchorlm.analyze.tally import Goal
from anchorlm.plan import ModelShape, Plan, Reach

SHAPE = ModelShape(layers=7, query_heads=4, kv_heads=2, head_dim=8, hidden=32, vocab=100, max_positions=512)
CONTEXT = 64


def need(budget):
    return Need(SHAPE, Reach("window", 16, 2), CONTEXT, budget, "slots", "kept")


@settings(deadline=None, max_examples=40)
@given(
    budget=st.integers(1, 400_000),
    order=st.permutations(range(7)).flatmap(lambda p: st.just(p)),
    way=st.sampled_from(list(WAYS)),
)
def test_a_way_holds_the_budget_and_cannot_hold_more(budget, order, way):
    wanted, shares = need(budget), WAYS[way]
    tokens, given = _filled(wanted, order, shares), [layer for i, layer in enumerate(order) if shares[min(i, 2)]]

    def size(least):
        counts = {layer: min(int(shares[min(i, 2)] * least), CONTEXT) for i, layer in enumerate(given)}
        return _choice(wanted, counts).size

    if not tokens:
        assert size(1) > budget
        return
    assert _choice(wanted, tokens).size <= budget and sorted(tokens) == sorted(given)
    counts = [tokens[layer] for layer in given]
    assert counts == sorted(counts, reverse=True) and 1 <= counts[-1] and counts[0] <= CONTEXT
    assert counts[-1] == CONTEXT or size(counts[-1] + 1) > budget


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ({FEW: (9, 9, 9), "even": (8, 8, 8), "steep": (7, 7, 7)}, "steep"),
        ({FEW: (9, 9, 9), "even": (5, 12, 9), "steep": (9, 9, 9)}, FEW),
        ({FEW: (7, 7, 7), "even": (8, 8, 8)}, FEW),
        ({"even": (8, 8, 8)}, "even"),
        ({}, FEW),
    ],
)
def test_a_way_is_taken_where_it_is_clearly_better(rows, taken):
    def sums(losses):
        return [{"all": [100.0 * loss, 100]} for loss in losses]

    goal = Goal({"all": 1.0}, (), 0)
    plan = Plan((Reach("window", 16, 2),) * 7)
    found = [
        Division(way, {0: 1}, Choice(plan, {"kept": [n]}, n), SimpleNamespace(rows=sums(losses)))
        for n, (way, losses) in enumerate(rows.items(), start=1)
    ]
    few = next((d.choice for d in found if d.way == FEW), Choice(plan, {"kept": []}, 0))
    choice = best(found, few, goal, sums((10, 10, 10)))
    assert choice.size == next((d.choice.size for d in found if d.way == taken), few.size)
    assert bool(choice.notes) == (taken != FEW)


def test_the_plans_line_says_how_many_tokens_each_layer_keeps():
    slots = {
        "a": {"write": 0, "options": {"tokens": 20}},
        "b": {"write": 1, "options": {"tokens": 20}},
        "c": {"write": 4, "options": {"tokens": 80}},
        "d": {"write": 4, "options": {"tokens": 20}},
    }
    result = {"placed": {"full": [6], "kept": [4, 0, 1]}, "plan": {"slots": slots}}
    assert placed(result) == "full in 6; kept in 4 (80 and 20), 0-1 (20)"
