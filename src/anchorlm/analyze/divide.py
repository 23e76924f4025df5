"""Ways to divide the bytes of kept tokens over the layers, measured side by side, and the one that serves best.

A few hundred tokens are soon enough for a layer, and more of them add little there; what other layers lack they lack
whatever the first ones keep. So the plan of a few layers is held against plans that keep some tokens in every layer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorlm.plan import Plan

from .bench import Trial
from .budget import Choice, Need
from .scan import Lab, Outcome
from .tally import Goal, Rows, below

FEW = "few"  # the plan that the ranking and the option `kept` give
WAYS = {  # shares of the tokens: of a layer in the most needed fifth, in the second fifth, and of any other
    "first": (1.0, 0.0, 0.0),
    "even": (1.0, 1.0, 1.0),
    "stepped": (4.0, 2.4, 1.0),
    "steep": (8.0, 4.0, 1.0),
}
CHUNK = 16  # of slots in every layer: a chunk's buffer holds as many tokens again


@dataclass(frozen=True)
class Division:
    """One way: the tokens of a KV head by layer, the choice they make, and what was measured of it."""

    way: str
    tokens: dict[int, int]
    choice: Choice
    outcome: Outcome


def divide(lab: Lab, need: Need, order: Sequence[int], few: Choice) -> list[Division]:
    """Every way that the budget holds, with the oracle's tokens in place of a gate's.

    order: layers, the most needed first; they alone get tokens. few: the choice that was made without division.
    """
    ways = {FEW: _tokens(few.plan)} | {way: _filled(need, order, shares) for way, shares in WAYS.items()}
    asked = {way: tokens for way, tokens in ways.items() if tokens}
    trials = {way: _trial(lab, way, tokens) for way, tokens in asked.items()}
    found = lab.race(lab.bench.windowed, list(trials.values()), what="divide") if trials else {}
    choices = {way: few if way == FEW else _choice(need, tokens) for way, tokens in asked.items()}
    return [Division(way, asked[way], choices[way], found[trial.name]) for way, trial in trials.items()]


def best(found: Sequence[Division], few: Choice, goal: Goal, windowed: Rows) -> Choice:
    """The choice of lowest loss, if that is clearly lower than what the choice without division gives."""
    known = next((division.outcome.rows for division in found if division.way == FEW), windowed)
    changes = [(goal.change(division.outcome.rows, known), division) for division in found]
    lower = [(change["value"], division) for change, division in changes if below(change, 0)]
    if not lower:
        return few
    chosen = min(lower, key=lambda pair: pair[0])[1]
    note = f"kept tokens: divided `{chosen.way}` over {len(chosen.tokens)} layers, clearly better than `{FEW}`"
    return replace(chosen.choice, notes=[note])


def _tokens(plan: Plan) -> dict[int, int]:
    return {slot.write: slot.rule_options.tokens for slot in plan.slots.values()}


def _filled(need: Need, order: Sequence[int], shares: tuple[float, float, float]) -> dict[int, int]:
    """As many tokens as the budget holds, in these shares; nothing where it does not hold one in each layer."""
    fifth = max(1, len(order) // 5)
    share = {layer: shares[min(place // fifth, 2)] for place, layer in enumerate(order)}

    def spread(least: int) -> dict[int, int]:
        return {layer: min(int(share[layer] * least), need.context) for layer in sorted(order) if share[layer]}

    held = bisect_right(range(1, need.context + 1), need.budget, key=lambda least: _choice(need, spread(least)).size)
    return spread(held) if held else {}


def _choice(need: Need, tokens: dict[int, int]) -> Choice:
    plan = need.plan
    for layer, count in tokens.items():
        plan = need.with_kept(plan, f"l{layer}", [layer], "kv", count, CHUNK)
    return Choice(plan.check(need.shape), {"kept": sorted(tokens)}, need.added(plan))


def _trial(lab: Lab, way: str, tokens: dict[int, int]) -> Trial:
    layers = tuple(sorted(tokens))
    return Trial(way, layers, lab.bench.windowed, layers[0], counts=tuple(tokens[layer] for layer in layers))
