"""Where trained fast weights are missed: what `analyze --what knockout` measured, as a score of layers.

Fast weights answer nothing before they are trained, so that no measurement of the untouched base can say where they
belong. And whether two scores agree on the layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from anchorlm.core import UserError

from .probes import BEYOND
from .tally import above

MEMORY, KIND = "memory", "knockout"
FIRST = 6  # layers that either score ranks highest, of which the page says how many are the same
Score = dict[int, dict[str, Any]]  # layer -> value and 95 % interval


def read_knocked(path: str | Path, depth: int) -> Score:
    """Rise of the loss beyond the window without each layer's memory, nats a token, from a knockout.json.

    Raises UserError for a file that is none, or of a deeper model or one without memory.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = found["texts"]["text"]["rows"] if found["kind"] == KIND else None
        scores = {row["layer"]: _score(row["change"][BEYOND]) for row in rows or () if row["branch"] == MEMORY}
    except FileNotFoundError:
        raise UserError(
            f"--knockout {path} does not exist; `anchorlm analyze DIR --what knockout -o RUN` writes it"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"--knockout {path} is not the result of `anchorlm analyze DIR --what knockout`") from None
    if beyond := [layer for layer in scores if layer not in range(depth)]:
        raise UserError(f"--knockout {path} names layer {beyond[0]}; the base has layers 0 to {depth - 1}")
    if not scores:
        raise UserError(f"--knockout {path} has no memory branch: analyse a trained model with a state in every layer")
    return scores


def _score(found: Any) -> dict[str, Any]:
    """The same estimate. Raises ValueError where that is no number with an interval of two, or with none."""
    numbers = [found["value"], *([0, 0] if found["interval"] is None else found["interval"])]
    plain = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if len(numbers) != 3 or not plain or not np.isfinite(numbers).all():
        raise ValueError("no estimate")
    return found


def missed(scores: Score) -> list[int]:
    """Layers whose memory is clearly missed, the most first."""
    clear = [layer for layer, score in scores.items() if above(score, 0)]
    return sorted(clear, key=lambda layer: -scores[layer]["value"])


def agreement(scores: Mapping[str, Mapping[int, float]]) -> list[dict[str, Any]]:
    """For every two scores of layers: Spearman's rank correlation over the layers that both know, and how many of the
    highest are the same. Fewer than three layers, or a score that tells none apart, say nothing."""
    rows = []
    for one, other in combinations(scores, 2):
        layers = sorted(scores[one].keys() & scores[other].keys())
        values = [np.array([scores[name][layer] for layer in layers]) for name in (one, other)]
        if len(layers) < 3 or any(np.ptp(side) == 0 for side in values):
            continue
        first = min(FIRST, len(layers) // 2)
        tops = [{layers[at] for at in np.argsort(-side, kind="stable")[:first]} for side in values]
        ranks = float(np.corrcoef(*map(_ranks, values))[0, 1])
        rows.append({"scores": [one, other], "layers": len(layers), "spearman": ranks, "first": first,
                     "common": sorted(tops[0] & tops[1])})  # fmt: skip
    return rows


def agreement_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{' and '.join(row['scores'])} order {row['layers']} layers alike with {row['spearman']:+.2f} (Spearman; 1: "
        f"the same order, 0: none in common); of the {row['first']} that either puts first, {len(row['common'])} are "
        "the same"
        for row in rows
    ]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Places in rising order; equal values share the mean of theirs."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[at]
