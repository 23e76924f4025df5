"""The stages of a placement in order: scan, together, heads, greedy search, oracle, choice, division, controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anchorlm.core import UserError
from anchorlm.plan import Plan, Reach

from . import scan
from .bench import Trial
from .budget import HEADS, Choice, Need, choose
from .divide import Division, best, divide
from .greedy import Step, greedy
from .knocked import Score, missed
from .scan import FLOOR, Lab, Outcome
from .settings import Settings
from .tally import Goal, Rows, above

POOL = 8  # candidates of the search at least

Outcomes = dict[str, Outcome]


@dataclass
class Run:
    """What the stages have measured so far; teacher and windowed are the two ends that all else lies between."""

    lab: Lab
    settings: Settings
    need: Need
    goal: Goal
    scanned: Outcomes
    joint: Outcomes = field(default_factory=dict)
    heads: Outcomes = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    kept: Outcomes = field(default_factory=dict)
    knocked: Score | None = None
    divided: list[Division] = field(default_factory=list)
    controls: Outcomes = field(default_factory=dict)

    @property
    def teacher(self) -> Rows:
        return self.scanned["teacher"].rows

    @property
    def windowed(self) -> Rows:
        return self.scanned["window"].rows

    def ranked(self) -> list[tuple[int, dict[str, Any]]]:
        """(layer, share of the window's whole cost that the window in this layer alone costs), the highest first."""
        singles = [outcome for outcome in self.scanned.values() if outcome.trial.stage == "layer"]
        shares = [(outcome.trial.first, self.goal.change(outcome.rows, self.teacher)) for outcome in singles]
        return sorted(shares, key=lambda pair: -pair[1]["value"])

    def anchors(self) -> list[int]:
        """Layers that clearly matter, the most needed first."""
        return [layer for layer, share in self.ranked() if above(share, FLOOR)]

    def retrieving(self) -> list[tuple[int, int]]:
        """(layer, KV head) of the heads whose window clearly costs something, the most needed first."""
        trials = [(outcome.trial, self.goal.change(outcome.rows, self.teacher)) for outcome in self.heads.values()]
        ranked = sorted(trials, key=lambda pair: -pair[1]["value"])
        return [(t.first, t.head) for t, cost in ranked if t.head is not None and above(cost, 0)]

    def open(self, least: int) -> list[int]:
        """Layers that are not clearly useless, and at least the `least` most needed ones, in order of depth.

        What the others cost all together is measured too (the trial `others` of `scan.together`).
        """
        ranked = [layer for layer, _ in self.ranked()]
        return sorted({*ranked[:least], *(layer for layer in ranked if not self.scanned[f"layer {layer}"].ended)})

    def helped(self) -> list[int]:
        """Layers where the oracle's tokens clearly lower the loss, the best first."""
        gains = [(o.trial.first, self.goal.change(o.rows, self.windowed)) for o in self.kept.values()]
        clear = [(layer, gain["value"]) for layer, gain in gains if gain["interval"] and gain["interval"][1] < 0]
        return [layer for layer, _ in sorted(clear, key=lambda pair: pair[1])]


def measure(lab: Lab, settings: Settings, need: Need) -> tuple[Run, Choice]:
    """Every stage. Raises UserError when the window in every layer costs nothing on this data."""
    candidates = settings.candidates(lab.bench.depth)
    run = _scanned(lab, settings, need, candidates)
    anchors = run.anchors()
    if anchors:
        run.joint = scan.together(lab, [layer for layer, _ in run.ranked()], anchors)
    probed = candidates if settings.layers else anchors
    if HEADS in need.keeps or settings.heads:
        run.heads = scan.heads(lab, probed)
    steps = settings.search(need)
    run.steps = greedy(lab, run.open(max(POOL, steps)), steps, run.goal, run.windowed)
    if settings.oracle or "oracle" in need.sources:
        run.kept = scan.oracle(lab, candidates, settings.count, run.goal, run.windowed)
    order = [step.layer for step in run.steps] if steps else anchors
    run.knocked = settings.knocked(lab.bench.depth)
    fast = anchors if run.knocked is None else [layer for layer in missed(run.knocked) if layer in candidates]
    rankings = {"window": fast, "greedy": order, "heads": run.retrieving(), "oracle": run.helped()}
    choice = choose(need, rankings)
    if settings.divides(need):
        run.divided = divide(lab, need, [layer for layer, _ in run.ranked()], choice)
        choice = best(run.divided, choice, run.goal, run.windowed)
    run.controls = _controls(run, choice)
    return run, choice


def _scanned(lab: Lab, settings: Settings, need: Need, candidates: Sequence[int]) -> Run:
    scanned = scan.layers(lab, candidates, settings.seed)
    goal = Goal.of(scanned["teacher"].rows, scanned["window"].rows, settings.seed)
    if goal is None:
        raise UserError("the window in every layer costs no loss on this data: no layer needs memory, plan swa will do")
    return Run(lab, settings, need, goal, scanned)


def _controls(run: Run, choice: Choice) -> Outcomes:
    """What the plan's bytes would give as a wider window, full attention in its single heads and layers alone, and the
    oracle's tokens in all layers of its slots."""
    bench, trials = run.lab.bench, wider(run, choice.size)
    if choice.placed.get(HEADS):
        plan = choice.plan.without_slots()
        changed = tuple(i for i, reach in enumerate(plan.layers) if reach != run.need.window)
        trials.append(Trial(HEADS, changed, plan, min(changed)))
    if (slots := choice.placed.get("kept")) and not run.divided:
        trials.append(Trial("oracle", tuple(sorted(slots)), bench.windowed, min(slots), kept=run.settings.count))
    return run.lab.race(bench.windowed, trials) if trials else {}


def wider(run: Run, size: int) -> list[Trial]:
    """The honest control: as many bytes spent on more window in every layer; none when that exceeds the context."""
    bench, need = run.lab.bench, run.need
    more = (need.window.window or 0) + size // (need.token * bench.depth)
    if more == need.window.window or more >= run.settings.context:
        return []
    return [Trial("wider", (), Plan((Reach("window", more, need.window.sinks),) * bench.depth), 0)]
