"""Figure 2: which layer's memory and which layer's window carries what distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..eval.stats import DRAWS, middle
from ..presets import boundary_groups
from ..results.measure import TEST
from . import claims
from .lab import Estimate, Lab, analysed, check_text, trained

ROW = "anchor-f"
MEMORY, WINDOW = "memory", "window"
TEXTS = {"recall": "facts asked for", "text": "running text"}
WHY = {
    claims.NOT: "in a model of this size retrieval lives in the middle layers, and the states have seen little text",
    claims.UNCLEAR: "so short a training leaves every layer's memory worth little, and its parts less",
}


def figure2(lab: Lab) -> dict[str, Any]:
    """Each branch of each chosen layer of the trained row taken away, on facts asked for and on running text."""
    run = lab.prepare("slots", (ROW,))
    check_text(lab, "knockout", run.stores[TEST])
    trained(lab.fill(run), (ROW,), least=1)
    found = analysed(lab, run, ROW, "knockout")
    outer = {layer for group in boundary_groups(run.shape.layers) for layer in group}
    asked = next(name for name in TEXTS if name in found["texts"])
    rows = found["texts"][asked]["rows"]
    return {
        "tables": [_table(TEXTS[name], found, name) for name in TEXTS if name in found["texts"]],
        "claims": [
            _memory(rows, found["bins"][1:], outer, lab.scale.seed),
            *_windows(rows),
        ],
        "figures": [
            {"kind": "knocks", "caption": f"Rise of the loss without one branch of one layer: {TEXTS[name]}",
             "text": name, "result": {key: found[key] for key in ("model", "bins", "texts")}}
            for name in TEXTS if name in found["texts"]
        ],
        "notes": [_note(found)],
    }  # fmt: skip


def far(row: Mapping[str, Any], bins: Sequence[str]) -> float | None:
    """Mean rise of the loss over targets whose source lies beyond the window; None without one."""
    held = [row["change"][name] for name in bins if name in row["change"]]
    targets = sum(one["targets"] for one in held)
    return sum(one["value"] * one["targets"] for one in held) / targets if targets else None


def gap(first: Sequence[float], second: Sequence[float], seed: int) -> Estimate | None:
    """Mean of the first layers less that of the second, 95 % with the layers of both drawn anew."""
    if not (first and second):
        return None
    sides = [np.asarray(side, float) for side in (first, second)]
    rng = np.random.default_rng([seed, 95])
    drawn = [side[rng.integers(len(side), size=(DRAWS, len(side)))].mean(1) for side in sides]
    interval = middle(drawn[0] - drawn[1]) if min(map(len, sides)) > 1 else None
    return {"value": float(sides[0].mean() - sides[1].mean()), "interval": interval}


def _memory(rows: Sequence[Mapping[str, Any]], bins: Sequence[str], outer: set[int], seed: int) -> dict[str, str]:
    rises = {row["layer"]: rise for row in rows if row["branch"] == MEMORY and (rise := far(row, bins)) is not None}
    edge, inner = ([rise for layer, rise in rises.items() if (layer in outer) == side] for side in (True, False))
    found = gap(edge, inner, seed)
    shown = [f"{np.mean(side):+.3f} nats a token in {len(side)} {what} layers" for side, what in
             ((edge, "boundary"), (inner, "other")) if side]  # fmt: skip
    ours = f"{' against '.join(shown)}; difference {claims.nats(found)}"
    return claims.claim("without its memory a boundary layer loses more beyond the window than another layer", "drawn",
                        ours, claims.above(found), WHY)  # fmt: skip


def _windows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    held = [row["change"]["all"] for row in rows if row["branch"] == WINDOW and "all" in row["change"]]
    verdicts = [claims.above(one) for one in held]
    ours = f"the loss rises in {sum(one['value'] > 0 for one in held)} of {len(held)} layers, "
    ours += f"for certain in {verdicts.count(claims.AGREES)}"
    return [
        claims.claim("the window matters at every depth", "drawn", ours, claims.together(*verdicts), WHY)
    ] if held else []  # fmt: skip


def _table(title: str, found: Mapping[str, Any], text: str) -> dict[str, Any]:
    bins = [*found["bins"], "all"]
    lines = [
        [row["branch"], str(row["layer"]), *(claims.nats(row["change"].get(name)) for name in bins)]
        for row in found["texts"][text]["rows"]
    ]
    heads = ["without", "layer", *(f"{name} back" if name != "all" else "all" for name in bins)]
    return {"title": f"Rise of the loss, {title}", "heads": heads, "rows": lines, "texts": 1}


def _note(found: Mapping[str, Any]) -> str:
    counts = " and ".join(f"{found['texts'][name]['n']} of {TEXTS[name]}" for name in TEXTS if name in found["texts"])
    return (
        f"Texts of {found['options']['context']:,} tokens, {counts}; 95 % by bootstrap over texts, of the "
        "difference over layers. A branch is taken away at every token; a memory that is not read is still written."
    )
