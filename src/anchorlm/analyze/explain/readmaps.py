"""Learned read maps taken apart (Anchor, arXiv 2611.04327, Figures 8 and 11): how much they stretch, and in how few
planes they turn, against a random turn of the same size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from anchorlm.core import UserError

from .job import Job, Options, Target
from .readouts import collect
from .turns import Planes, Polar, null_angles, polar, rotation_planes, shares

LEADING = 5  # planes whose share is compared with the null
DRAWS = 200  # of the null
POINTS = 12  # read-outs whose way through the map is drawn
QUARTILES = [0.25, 0.5, 0.75]

Row = dict[str, Any]


def check(target: Target, options: Options) -> None:
    """Raise UserError for a model without slots, or whose slots have no read map."""
    target.check_slots("readmaps")
    kinds = {name: slot.map.kind for name, slot in target.plan.slots.items()}
    if all(kind == "none" for kind in kinds.values()):
        raise UserError(f"{target.name} has no read map: map is 'none' in slot {', '.join(kinds)}")


def readmaps(job: Job) -> Row:
    """One row a reader with a map: stretch, ranked angles and shares over heads; with text, read-outs in its plane."""
    dim = job.target.shape.head_dim
    null = null_angles(dim, DRAWS, job.options.seed)
    pieces = job.pieces() if job.store is not None else []
    answers = collect(job, pieces, "readmaps").answers if pieces else {}
    rows = []
    for layer, slot in job.target.readers():
        map_ = job.model.backbone.model.layers[layer].self_attn.readers[slot].map
        if map_ is None:
            continue
        with torch.no_grad():
            matrices = map_.matrix().double().cpu().numpy()
        seen = answers.get((layer, slot))
        rows.append(_reader(layer, slot, matrices, null, None if seen is None else seen.double().numpy()))
    return job.head("readmaps", len(pieces) or None) | {
        "head_dim": dim,
        "leading": min(LEADING, dim // 2),
        "null": {"draws": DRAWS, "share": _quantiles(_leading(null)), "profile": np.median(null, 0).tolist()},
        "readers": rows,
    }


def _reader(layer: int, slot: str, matrices: np.ndarray, null: np.ndarray, answers: np.ndarray | None) -> Row:
    """matrices [H, d, d]; null [draws, P] of unit size; answers [n, H, d] or None."""
    forms = [polar(matrix) for matrix in matrices]
    turns = [rotation_planes(form.rotation) for form in forms]
    angles = np.stack([turn.angles for turn in turns])
    size = np.sqrt(np.square(angles).sum(1))
    lead = min(LEADING, angles.shape[1])
    held = [share for turn in turns if (share := shares(turn.angles)) is not None]
    profile, expected = np.median(angles, 0), np.median(size) * np.median(null, 0)
    return {
        "layer": layer,
        "slot": slot,
        "heads": len(matrices),
        "reflecting": sum(turn.reflects for turn in turns),
        "stretch": _quantiles(np.stack([form.spectrum for form in forms])),
        "angles": _quantiles(angles),
        "null_angles": expected.tolist(),
        "above_null": int(np.argmin([*(profile > expected), False])),
        "size": float(np.median(size)),
        "share": _quantiles(np.stack(held)[:, lead - 1]) if held else None,
        "heads_above_null": sum(bool(share[lead - 1] > np.quantile(_leading(null), 0.975)) for share in held),
        "way": None if answers is None else _way(forms[0], turns[0], answers[:, 0]),
        "energy": None if answers is None else _energy(forms, turns, answers),
    }


def _leading(angles: np.ndarray) -> np.ndarray:
    """Share of the LEADING planes, [n] from [n, P]."""
    squares = np.square(angles)
    return squares[:, :LEADING].sum(1) / squares.sum(1)


def _quantiles(values: np.ndarray) -> Row:
    """Median and quartiles over the first axis."""
    low, middle, high = np.quantile(values, QUARTILES, axis=0)
    return {"median": middle.tolist(), "low": low.tolist(), "high": high.tolist()}


def _energy(forms: list[Polar], turns: list[Planes], answers: np.ndarray) -> Row | None:
    """Share of the stretched read-outs' squared length that lies in each head's leading plane; 2 / d if nothing were
    special about it. None when no head turns."""
    found = []
    for head, (form, turn) in enumerate(zip(forms, turns, strict=True)):
        if turn.frame.shape[1]:
            stretched = answers[:, head] @ form.stretch
            found.append(np.square(stretched @ turn.plane(0)).sum() / np.square(stretched).sum())
    return _quantiles(np.array(found)) if found else None


def _way(form: Polar, turn: Planes, answers: np.ndarray) -> Row | None:
    """Some read-outs of head 0 in its leading plane: as answered, stretched, and turned, each [n, 2]."""
    if not turn.frame.shape[1]:
        return None
    some = answers[np.unique(np.linspace(0, len(answers) - 1, min(POINTS, len(answers))).round().astype(int))]
    stretched = some @ form.stretch
    stages = {"answered": some, "stretched": stretched, "turned": stretched @ form.rotation.T}
    return {"angle": float(turn.angles[0])} | {name: (x @ turn.plane(0)).tolist() for name, x in stages.items()}
