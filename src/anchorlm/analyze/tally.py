"""Losses and changes of loss with intervals, and the one figure by which layers are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlm.eval.stats import bootstrap_draws, bootstrap_ratio, middle

from .bench import Sums
from .probes import BEYOND, NEEDLE, TEXT

TASKS = (TEXT, BEYOND, NEEDLE)
Rows = list[Sums]  # one entry a probe, in the order of the rounds


def loss(rows: Sequence[Sums], group: str, seed: int) -> dict[str, Any] | None:
    """Nats a token (or the share of exact answers) with its 95 % interval over documents; None without targets."""
    return _estimate(*_arrays(rows, group), seed)


def change(rows: Sequence[Sums], base: Sequence[Sums], group: str, seed: int) -> dict[str, Any] | None:
    """Rise of the loss of `rows` over `base` on the same probes, paired; rows may be fewer."""
    return _estimate(*_gaps(rows, base, group), seed)


def more(rows: Sequence[Sums], base: Sequence[Sums], group: str, other: str, seed: int) -> dict[str, Any] | None:
    """How much more the loss of `group` rises than that of `other`, documents drawn anew for both at once.

    None where either has no target.
    """
    rises = [change(rows, base, name, seed) for name in (group, other)]
    if rises[0] is None or rises[1] is None:
        return None
    drawn = [bootstrap_draws(*_gaps(rows, base, name), seed) for name in (group, other)]
    interval = None if drawn[0] is None or drawn[1] is None else middle(drawn[0] - drawn[1])
    return {"value": rises[0]["value"] - rises[1]["value"], "interval": interval, "targets": rises[0]["targets"]}


def by_group(rows: Sequence[Sums], base: Sequence[Sums] | None, seed: int) -> dict[str, dict[str, Any]]:
    """Every group's loss, or its change against `base`."""
    names = dict.fromkeys(name for row in rows for name in row)
    found = {n: loss(rows, n, seed) if base is None else change(rows, base, n, seed) for n in names}
    return {name: value for name, value in found.items() if value is not None}


def _estimate(sums: np.ndarray, counts: np.ndarray, seed: int) -> dict[str, Any] | None:
    if not counts.sum():
        return None
    interval = bootstrap_ratio(sums, counts, seed)
    return {"value": float(sums.sum() / counts.sum()), "interval": interval, "targets": int(counts.sum())}


def _gaps(rows: Sequence[Sums], base: Sequence[Sums], group: str) -> tuple[np.ndarray, np.ndarray]:
    """Rise of each row over `base`, and its targets."""
    sums, counts = _arrays(rows, group)
    return sums - _arrays(base, group)[0][: len(sums)], counts


def _arrays(rows: Sequence[Sums], group: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array([row.get(group, [0.0, 0]) for row in rows], float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@dataclass(frozen=True)
class Goal:
    """What is compared: the change of loss as a share of what the window costs in all layers, mean over the tasks.

    The tasks are all tokens of the text, those whose word pair last stood beyond the window, and needles: what a
    reader pays on average, and what memory alone can give, which is rare in running text.
    weights: task -> 1 / (tasks x nats a token that the window costs in it); 1 is the window in every layer, 0 the
    untouched teacher. skipped: tasks that the window does not clearly harm, so that they say nothing about memory.
    """

    weights: dict[str, float]
    skipped: tuple[str, ...]
    seed: int

    @classmethod
    def of(cls, teacher: Sequence[Sums], windowed: Sequence[Sums], seed: int) -> Goal | None:
        """None when the window clearly harms neither text nor needles: then no layer needs memory."""
        costs = {task: change(windowed, teacher, task, seed) for task in TASKS}
        known = {task: cost for task, cost in costs.items() if cost is not None}
        used = {task: cost["value"] for task, cost in known.items() if (cost["interval"] or [cost["value"]])[0] > 0}
        weights = {task: 1 / (len(used) * cost) for task, cost in used.items()}
        return cls(weights, tuple(task for task in known if task not in used), seed) if used else None

    def change(self, rows: Sequence[Sums], base: Sequence[Sums]) -> dict[str, Any]:
        """Share with its 95 % interval; documents are drawn anew for both tasks on text at once, needles apart."""
        changes, drawn = 0.0, []
        for task, weight in self.weights.items():
            sums, counts = _arrays(rows, task)
            gap = sums - _arrays(base, task)[0][: len(sums)]
            changes += weight * float(gap.sum() / counts.sum()) if counts.sum() else 0.0
            drawn.append((bootstrap_draws(gap, counts, self.seed + (task == NEEDLE)), weight))
        known = all(draws is not None for draws, _ in drawn)
        total = sum(weight * draws for draws, weight in drawn if draws is not None)
        return {"value": changes, "interval": middle(np.asarray(total)) if known else None}


def above(estimate: dict[str, Any], level: float) -> bool:
    """The whole interval lies above the level."""
    return estimate["interval"] is not None and estimate["interval"][0] > level


def below(estimate: dict[str, Any], level: float) -> bool:
    return estimate["interval"] is not None and estimate["interval"][1] < level
