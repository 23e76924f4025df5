"""From the window in every layer upwards: give full attention back to the layer that helps most, again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anchorlm.plan import Reach

from .bench import Bench, Trial
from .scan import Lab, Outcome
from .tally import Goal, Rows, above, below


@dataclass(frozen=True)
class Step:
    """One layer given back: the winner, what it was compared with, and every candidate of the step."""

    layer: int
    outcome: Outcome
    before: Rows
    candidates: dict[str, Outcome]


def given_back(bench: Bench, layers: Sequence[int], new: int) -> Trial:
    """The window in every layer but those of `layers` and `new`, compared with the same plan without `new`."""
    kept = (*layers, new)
    return Trial("greedy", kept, bench.plan(kept, inside=Reach(), outside=bench.window), new)


def greedy(lab: Lab, candidates: Sequence[int], steps: int, goal: Goal, windowed: Rows) -> list[Step]:
    """At most `steps` steps; ends when no candidate's gain is clear.

    A candidate leaves a step as soon as it is clearly worse than the best; the next step tries it again, since two
    layers that retrieve together may each be useless alone.
    """
    chosen: list[int] = []
    found: list[Step] = []
    rows = windowed
    while len(found) < steps:
        step = _step(lab, [layer for layer in candidates if layer not in chosen], chosen, goal, rows)
        if step is None:
            break
        chosen.append(step.layer)
        found.append(step)
        rows = step.outcome.rows
    return found


def _step(lab: Lab, pool: list[int], chosen: list[int], goal: Goal, before: Rows) -> Step | None:
    if not pool:
        return None
    bench = lab.bench
    base = bench.plan(chosen, inside=Reach(), outside=bench.window)

    def decide(rows: dict[str, Rows]) -> set[str]:
        best = rows[min(rows, key=lambda name: goal.change(rows[name], before)["value"])]
        return {name for name, own in rows.items() if above(goal.change(own, best), 0)}

    outcomes = lab.race(base, [given_back(bench, chosen, layer) for layer in pool], decide)
    finished = [outcome for outcome in outcomes.values() if not outcome.ended]
    winner = min(finished, key=lambda outcome: goal.change(outcome.rows, before)["value"])
    if not below(goal.change(winner.rows, before), 0):
        return None
    return Step(winner.trial.first, winner, before, outcomes)
