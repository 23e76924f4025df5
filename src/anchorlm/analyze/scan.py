"""Trials against one plan, side by side over the same documents, each only for as long as its answer is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from anchorlm.plan import Plan, Reach

from .bench import Bench, Prefix, Trial
from .probes import Probe
from .tally import Goal, Rows, above, below

LEAST = 3  # rounds before a trial may end: an interval over fewer is not one
FLOOR = 0.02  # a layer matters when it costs clearly more than this share of what the window costs in all layers

Progress = Callable[[str, int, int], None]
Decide = Callable[[dict[str, Rows]], set[str]]


@dataclass
class Outcome:
    """A trial's sums, one a probe; ended: its answer was clear before all rounds were measured."""

    trial: Trial
    rows: Rows = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True)
class Lab:
    """What every stage needs: the bench, the rounds of probes, and whom to tell."""

    bench: Bench
    rounds: Sequence[Sequence[Probe]]
    progress: Progress | None = None

    def race(
        self, base: Plan, trials: Sequence[Trial], decide: Decide | None = None, what: str = ""
    ) -> dict[str, Outcome]:
        """Measure the trials, all compared with `base`; `decide(rows by name)` names those whose answer is clear.

        One probe at a time, so that the hidden states of one are held and no more.
        """
        outcomes = {trial.name: Outcome(trial) for trial in trials}
        done, total = 0, len(trials) * sum(map(len, self.rounds))
        for number, probes in enumerate(self.rounds, start=1):
            live = [outcome for outcome in outcomes.values() if not outcome.ended]
            for probe in probes:
                prefix, teacher = self._prefixes(base, probe)
                for outcome in live:
                    outcome.rows.append(self.bench.measure(outcome.trial, probe, prefix, teacher))
                    done += 1
                    self._tell(what or trials[-1].stage, done, total)
            if decide is not None and LEAST <= number < len(self.rounds):
                for name in decide({outcome.trial.name: outcome.rows for outcome in live}):
                    outcomes[name].ended = True
                    total -= sum(map(len, self.rounds[number:]))
        return outcomes

    def _prefixes(self, base: Plan, probe: Probe) -> tuple[Prefix, Prefix]:
        prefix = Prefix(self.bench.model, base, probe)
        full = self.bench.full
        return prefix, prefix if base == full else Prefix(self.bench.model, full, probe)

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)


def layers(lab: Lab, chosen: Sequence[int], seed: int) -> dict[str, Outcome]:
    """The teacher, the window in every layer, then the window in one layer at a time.

    A layer ends early when it clearly does not matter: its whole interval is below FLOOR.
    """
    bench = lab.bench
    ends = [Trial("teacher", (), bench.full, bench.depth), Trial("window", (), bench.windowed, 0)]
    singles = [restricted(bench, "layer", (layer,)) for layer in chosen]

    def decide(rows: dict[str, Rows]) -> set[str]:
        goal = Goal.of(rows["teacher"], rows["window"], seed)
        if goal is None:
            return set()
        costs = {t.name: goal.change(rows[t.name], rows["teacher"]) for t in singles if t.name in rows}
        return {name for name, cost in costs.items() if below(cost, FLOOR)}

    return lab.race(bench.full, [*ends, *singles], decide)


def restricted(bench: Bench, stage: str, layers: tuple[int, ...]) -> Trial:
    """The window in the named layers of the teacher."""
    return Trial(stage, layers, bench.plan(layers, inside=bench.window, outside=Reach()), min(layers))


def together(lab: Lab, ranked: Sequence[int], anchors: Sequence[int], pairs: int = 4) -> dict[str, Outcome]:
    """The window in pairs of the first `pairs` layers of the ranking, in each run of neighbouring anchors, in all
    anchors, and in all other layers."""
    bench = lab.bench
    trials = [restricted(bench, "pair", tuple(sorted(pair))) for pair in combinations(ranked[:pairs], 2)]
    runs = [tuple(run) for run in neighbours(anchors)]
    trials += [restricted(bench, "group", run) for run in runs if len(run) > 1]
    others = tuple(layer for layer in range(bench.depth) if layer not in set(anchors))
    trials += [
        restricted(bench, name, group) for name, group in (("anchors", tuple(anchors)), ("others", others)) if group
    ]
    return lab.race(bench.full, trials, what="together")


def neighbours(layers: Sequence[int], near: int = 1) -> list[list[int]]:
    """Runs of layers that lie at most `near` apart: [7, 8, 18] -> [[7, 8], [18]]."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer - runs[-1][-1] <= near:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def heads(lab: Lab, chosen: Sequence[int]) -> dict[str, Outcome]:
    """In each named layer, the window for the query heads of one KV head at a time.

    Which heads retrieve and which stream is the question of DuoAttention (arXiv 2410.10819).
    """
    bench, trials = lab.bench, []
    for layer, head in product(chosen, range(bench.model.shape.kv_heads)):
        plan = bench.plan((layer,), inside=Reach(heads=((head, bench.window),)), outside=Reach())
        trials.append(Trial("head", (layer,), plan, layer, head=head))
    return lab.race(bench.full, trials)


def oracle(lab: Lab, chosen: Sequence[int], count: int, goal: Goal, windowed: Rows) -> dict[str, Outcome]:
    """All layers windowed, one at a time also sees the `count` tokens that matter most; useless layers end early."""
    plan = lab.bench.windowed

    def decide(rows: dict[str, Rows]) -> set[str]:
        return {name for name, own in rows.items() if above(goal.change(own, windowed), -FLOOR)}

    return lab.race(plan, [Trial("oracle", (i,), plan, i, kept=count) for i in chosen], decide)
