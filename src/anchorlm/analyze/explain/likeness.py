"""How alike the read-outs of every two layers are (Anchor, arXiv 2611.04327, Figures 1, 4 and 9).

High CKA with cosine near zero says: the layers are told the same, each in its own coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorlm.core import UserError
from anchorlm.presets import boundary_groups

from ..similarity import LEAST, cka_matrix
from .job import Job, Options, Target
from .readouts import Reader, Readouts, collect

Row = dict[str, Any]
Pairs = dict[str, list[tuple[int, int]]]


def check(target: Target, options: Options) -> None:
    """Raise UserError for a model with fewer than two readers, or a context with nothing beyond the window."""
    target.check_slots("similarity")
    if len(target.readers()) < 2:
        layer, slot = target.readers()[0]
        raise UserError(f"similarity compares readers; in {target.name} only layer {layer} reads ({slot!r})")
    target.check_context(options)


def similarity(job: Job) -> Row:
    """Debiased CKA and mean cosine of read-outs for every pair of readers, and their means by kind of pair."""
    pieces = job.pieces()
    found = collect(job, pieces, "similarity")
    readers = job.target.readers()
    whole, parts = (cka_of(found), cosines_of(found)), _left_out(found)
    means = {
        kind: {
            "n": len(pairs),
            "cka": _mean(pairs, whole[0], [part[0] for part in parts]),
            "cosine": _mean(pairs, whole[1], [part[1] for part in parts]),
        }
        for kind, pairs in kinds_of_pairs(readers, job.target.shape.layers).items()
    }
    return job.head("similarity", len(pieces)) | {
        "window": job.target.window(job.options),
        "targets": len(found),
        "readers": [{"layer": layer, "slot": slot} for layer, slot in readers],
        "cka": whole[0].tolist(),
        "cosine": whole[1].tolist(),
        "pairs": means,
        "shuffled": _shuffled(found, job.options.seed),
    }


def cka_of(found: Readouts) -> Tensor:
    """Debiased CKA of every two readers, heads joined: [R, R] float64."""
    rows = [answer.flatten(1).double() for answer in found.answers.values()]
    return cka_matrix(torch.stack([x @ x.T for x in rows]))


def cosines_of(found: Readouts) -> Tensor:
    """Mean cosine of every two readers, over targets and heads: [R, R] float64."""
    units = torch.stack([torch.nn.functional.normalize(a.double(), dim=-1).flatten() for a in found.answers.values()])
    heads = next(iter(found.answers.values())).shape[1]
    return units @ units.T / (len(found) * heads)


def kinds_of_pairs(readers: list[Reader], depth: int) -> Pairs:
    """Pairs of places in `readers` by kind; kinds without a pair are left out.

    anchors: both layers among the first two and last four; interior: neither; same slot, other slot: whom they read.
    """
    outer = {layer for group in boundary_groups(depth) for layer in group}
    pairs = list(combinations(range(len(readers)), 2))
    kinds: dict[str, Callable[[Reader, Reader], bool]] = {
        "all": lambda a, b: True,
        "anchors": lambda a, b: a[0] in outer and b[0] in outer,
        "interior": lambda a, b: a[0] not in outer and b[0] not in outer,
        "same slot": lambda a, b: a[1] == b[1],
        "other slot": lambda a, b: a[1] != b[1],
    }
    found = {kind: [p for p in pairs if fits(readers[p[0]], readers[p[1]])] for kind, fits in kinds.items()}
    return {kind: chosen for kind, chosen in found.items() if chosen}


def _left_out(found: Readouts) -> list[tuple[Tensor, Tensor]]:
    """CKA and cosines with one document left out at a time; none where too few targets would be left."""
    kept = [_without(found, number) for number in np.unique(found.document)]
    if len(kept) < 2 or min(map(len, kept)) < LEAST:
        return []
    return [(cka_of(part), cosines_of(part)) for part in kept]


def _without(found: Readouts, number: int) -> Readouts:
    stays = found.document != number
    chosen = torch.from_numpy(stays)
    return Readouts({reader: answer[chosen] for reader, answer in found.answers.items()}, found.document[stays])


def _mean(pairs: list[tuple[int, int]], whole: Tensor, parts: Sequence[Tensor]) -> Row:
    rows, columns = (torch.tensor(side) for side in zip(*pairs, strict=True))
    value = float(whole[rows, columns].mean())
    return {"value": value, "interval": jackknife(value, [float(part[rows, columns].mean()) for part in parts])}


def jackknife(whole: float, parts: Sequence[float]) -> list[float] | None:
    """95 % interval of a figure from its values with one document left out at a time; None for fewer than two."""
    if len(parts) < 2:
        return None
    values, count = np.array(parts), len(parts)
    spread = 1.96 * math.sqrt((count - 1) / count * float(np.square(values - values.mean()).sum()))
    return [whole - spread, whole + spread]


def _shuffled(found: Readouts, seed: int) -> float:
    """Mean CKA of pairs whose targets no longer belong together: what unrelated read-outs score."""
    generator = torch.Generator().manual_seed(seed)
    mixed = {r: a[torch.randperm(len(a), generator=generator)] for r, a in found.answers.items()}
    cka = cka_of(Readouts(mixed, found.document))
    rows, columns = torch.triu_indices(len(cka), len(cka), offset=1)
    return float(cka[rows, columns].mean())
