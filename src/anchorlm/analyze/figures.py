"""A placement's measurements as JSON: every trial, the layers ranked, the search, and loss against bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bench import Trial
from .budget import FULL, HEADS, KINDS, Choice
from .divide import Division
from .greedy import Step
from .knocked import agreement, agreement_notes
from .probes import TEXT, distance_bins
from .scan import FLOOR, Outcome
from .stages import Run
from .tally import TASKS, Rows, by_group, loss

Row = dict[str, Any]


def figures(run: Run, choice: Choice) -> Row:
    """Everything measured; `trials` holds all trials, the other keys what follows from them."""
    settings, seed, agreed = run.settings, run.settings.seed, _agreement(run)
    return {
        "bins": list(distance_bins(settings.window, settings.context)),
        "teacher": by_group(run.teacher, None, seed),
        "window": by_group(run.windowed, None, seed),
        "goal": {"weights": run.goal.weights, "skipped": list(run.goal.skipped), "floor": FLOOR},
        "layers": [_layer(run, layer) for layer, _ in run.ranked()],
        "greedy": [_step(run, run.steps[: n + 1]) for n in range(len(run.steps))],
        "heads": _heads(run),
        "pareto": _points(run),
        "trials": _trials(run),
        "plan": choice.plan.to_dict(),
        "placed": choice.placed,
        "bytes": choice.size,
        "agreement": agreed,
        "notes": [*_notes(run, choice), *agreement_notes(agreed)],
    }


def _trials(run: Run) -> list[Row]:
    """Each trial beside the plan it was compared with: the teacher, the search so far, or the window alone."""
    found = [_trial(run, o, run.teacher) for part in (run.scanned, run.joint, run.heads) for o in part.values()]
    for step in run.steps:
        found += [_trial(run, outcome, step.before) for outcome in step.candidates.values()]
    outcomes = [*run.kept.values(), *(division.outcome for division in run.divided), *run.controls.values()]
    return found + [_trial(run, outcome, run.windowed) for outcome in outcomes]


def _trial(run: Run, outcome: Outcome, base: Rows) -> Row:
    trial, seed = outcome.trial, run.settings.seed
    return {
        "stage": trial.stage,
        "layers": list(trial.layers),
        "head": trial.head,
        "kept": list(trial.counts) or trial.kept or None,
        "plan": trial.plan.to_dict(),
        "probes": len(outcome.rows),
        "ended_early": outcome.ended,
        "loss": by_group(outcome.rows, None, seed),
        "change": by_group(outcome.rows, base, seed),
        "share": run.goal.change(outcome.rows, base),
    }


def _layer(run: Run, layer: int) -> Row:
    outcome = run.scanned[f"layer {layer}"]
    alone = [o for o in run.steps[0].candidates.values() if o.trial.first == layer] if run.steps else []
    oracle = run.kept.get(f"oracle {layer}")
    return {
        "layer": layer,
        "share": run.goal.change(outcome.rows, run.teacher),
        "matters": layer in run.anchors(),
        "probes": len(outcome.rows),
        "ended_early": outcome.ended,
        "change": by_group(outcome.rows, run.teacher, run.settings.seed),
        "gain_alone": _gain(run, alone[0].rows) if alone else None,
        "gain_oracle": _oracle_gain(run, oracle) if oracle else None,
        "missed": run.knocked.get(layer) if run.knocked else None,
    }


def _oracle_gain(run: Run, outcome: Outcome) -> Row:
    """What the kept tokens of one layer win back, and nats a token of all text for each megabyte of them."""
    size = outcome.trial.kept * run.need.token
    change = by_group(outcome.rows, run.windowed, run.settings.seed)
    nats = -change[TEXT]["value"] / (size / 1e6)
    return _gain(run, outcome.rows) | {"bytes": size, "nats_per_megabyte": nats, "change": change}


def _gain(run: Run, rows: Rows) -> Row:
    """Share of the window's whole cost that is won back."""
    change = run.goal.change(rows, run.windowed)
    ends = change["interval"]
    return {"value": -change["value"], "interval": ends and [-ends[1], -ends[0]]}


def _step(run: Run, path: Sequence[Step]) -> Row:
    step = path[-1]
    return {
        "layer": step.layer,
        "layers": [s.layer for s in path],
        "bytes": len(path) * run.need.size(FULL),
        "won_back": _gain(run, step.outcome.rows),
        "loss": by_group(step.outcome.rows, None, run.settings.seed),
        "candidates": len(step.candidates),
        "ended_early": sum(outcome.ended for outcome in step.candidates.values()),
    }


def _heads(run: Run) -> list[Row]:
    rows = [
        {
            "layer": outcome.trial.first,
            "head": outcome.trial.head,
            "share": run.goal.change(outcome.rows, run.teacher),
            "change": by_group(outcome.rows, run.teacher, run.settings.seed),
        }
        for outcome in run.heads.values()
    ]
    return sorted(rows, key=lambda row: -row["share"]["value"])


def _points(run: Run) -> list[Row]:
    """Bytes beside the windows against loss, one point a plan that was measured on every document."""
    depth, full = run.lab.bench.depth, run.need.size(FULL)
    path = [step.layer for step in run.steps]
    points = [_point(run, "window alone", 0, [], run.windowed)]
    for n, step in enumerate(run.steps, start=1):
        points.append(_point(run, "full attention kept", n * full, path[:n], step.outcome.rows))
    points += [_point(run, *_control(run, o.trial), o.rows) for o in run.controls.values()]
    points += [_point(run, _series(d), d.choice.size, sorted(d.tokens), d.outcome.rows) for d in run.divided]
    others = run.joint.get("others " + "+".join(map(str, sorted(set(range(depth)) - set(run.anchors())))))
    if others:
        anchors = sorted(run.anchors())
        points.append(_point(run, "full attention in all that matter", len(anchors) * full, anchors, others.rows))
    return [*points, _point(run, "teacher", depth * full, list(range(depth)), run.teacher)]


def _control(run: Run, trial: Trial) -> tuple[str, int, list[int]]:
    """Series, bytes and layers of a control."""
    if trial.kept:
        size = len(trial.layers) * run.need.size(run.need.rule)
        return f"{trial.kept} kept tokens (oracle)", size, list(trial.layers)
    if trial.stage == HEADS:
        return "full attention in single heads", run.need.full_size(trial.plan), list(trial.layers)
    width = trial.plan.layers[0].window or 0
    more = width - (run.need.window.window or 0)
    return f"window {width}", more * run.lab.bench.depth * run.need.token, []


def _series(division: Division) -> str:
    """`144, 88 and 37 kept tokens (oracle)`: of a KV head, in the most needed layers first."""
    counts = [str(count) for count in sorted(set(division.tokens.values()), reverse=True)]
    return f"{' and '.join(filter(None, (', '.join(counts[:-1]), counts[-1])))} kept tokens (oracle)"


def _point(run: Run, series: str, size: int, layers: list[int], rows: Rows) -> Row:
    found = {name: loss(rows, name, run.settings.seed) for name in (*TASKS, "exact")}
    return {"series": series, "bytes": size, "layers": layers, "loss": found}


def _agreement(run: Run) -> list[Row]:
    """How far the scores agree on the layers: attention's need, the oracle's gain, and trained fast weights' loss."""
    scores = {"the window's cost": {layer: share["value"] for layer, share in run.ranked()}}
    gains = {outcome.trial.first: _gain(run, outcome.rows)["value"] for outcome in run.kept.values()}
    scores |= {"the oracle's gain": gains} if gains else {}
    if run.knocked:
        scores["the knock-out of fast weights"] = {layer: score["value"] for layer, score in run.knocked.items()}
    return agreement(scores)


def _notes(run: Run, choice: Choice) -> list[str]:
    notes = list(choice.notes)
    notes += [f"{task}: the window costs it nothing that is clear, so it was left out" for task in run.goal.skipped]
    fast = any(units and KINDS[kind].shared for kind, units in choice.placed.items())
    if fast and run.knocked is None:
        notes.append("fast weights are placed where the window costs most; what they win back shows after training")
    if run.heads and HEADS not in run.need.keeps:
        notes.append("the scores of single heads do not enter this plan; --keep heads places by them")
    return notes
