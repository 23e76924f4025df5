"""Figures of a knock-out and of the similarity of read-outs."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from anchorlm.report.placing import LINEAR, _label
from anchorlm.report.plots import COLOURS, STYLE, _figure, svg

PANELS = {"memory": "memory branch", "window": "window branch"}

Row = dict[str, Any]


def panels(count: int, width: float, height: float, down: bool = True, **shared: Any) -> tuple[Figure, list[Any]]:
    """Axes one below the other, or side by side; always a list."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(count if down else 1, 1 if down else count, squeeze=False, **shared)
        return figure, list(axes.flat)


def knock_map(result: Row, text: str, what: str = "change") -> str:
    """Rows are distances, columns layers; above the memory branch, below the window; grey where there is no branch.

    what: "change", or "noise" for the control. Both have one scale, linear up to LINEAR.
    """
    found = result["texts"][text]["rows"]
    branches = [name for name in PANELS if any(row["branch"] == name for row in found)]
    layers = sorted({row["layer"] for row in found})
    names = [*result["bins"], "all"]
    values = {name: _grid([row for row in found if row["branch"] == name], layers, names, what) for name in branches}
    top = max(LINEAR, _top(found, "change"), _top(found, "noise"))
    size = 0.75 + 0.27 * len(names)
    figure, axes = panels(len(branches), 2.9 + 0.26 * len(layers), 0.6 + size * len(branches), sharex=True)
    for axis, name in zip(axes, branches, strict=True):
        image = _heat(axis, values[name], SymLogNorm(linthresh=LINEAR, vmin=-top, vmax=top))
        axis.set_yticks(range(len(names)), [_label(n) for n in names])
        axis.set_title(PANELS[name], fontsize=10, loc="left")
    axes[-1].set_xticks(range(len(layers)), [str(layer) for layer in layers], fontsize=8)
    axes[-1].set_xlabel("layer")
    figure.supylabel("tokens back to the source", fontsize=10)
    figure.colorbar(image, ax=axes, label="rise of loss, nats a token", ticks=_ticks(top), format="%g")
    return svg(figure, f"knock-{result['model']}-{text}-{what}")


def _grid(rows: list[Row], layers: list[int], names: list[str], what: str) -> list[list[float]]:
    held = {(row["layer"], name): e["value"] for row in rows for name, e in (row[what] or {}).items()}
    return [[held.get((layer, name), math.nan) for layer in layers] for name in names]


def _top(rows: list[Row], what: str) -> float:
    """The furthest from zero of what the maps show."""
    shown = [row for row in rows if row["branch"] in PANELS]
    return max((abs(e["value"]) for row in shown for e in (row[what] or {}).values()), default=0.0)


def _ticks(top: float) -> list[float]:
    """0, the end of the linear part, and powers of ten up to the top, both ways."""
    above, step = [], LINEAR
    while step <= top * 1.001:
        above.append(step)
        step *= 10
    return [*(-tick for tick in reversed(above)), 0.0, *above]


def _heat(axis: Any, grid: list[list[float]], norm: Any, colours: str = "RdBu_r") -> Any:
    chosen = matplotlib.colormaps[colours].copy()
    chosen.set_bad("#e8eaed")
    axis.grid(False)
    return axis.imshow(grid, cmap=chosen, norm=norm, aspect="auto", interpolation="nearest")


def likeness(result: Row) -> str:
    """Debiased CKA and mean cosine of every two readers."""
    names = _names(result)
    size = 1.6 + 0.19 * max(8, len(names))
    figure, axes = panels(2, 2 * size + 1.2, size, down=False)
    for axis, what, colours, low in ((axes[0], "cka", "YlGnBu", 0.0), (axes[1], "cosine", "RdBu_r", -1.0)):
        image = _heat(axis, result[what], matplotlib.colors.Normalize(low, 1.0), colours)
        axis.set_aspect("equal")
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_xlabel("layer that reads")
        label = "debiased CKA" if what == "cka" else "mean cosine"
        figure.colorbar(image, ax=axis, label=label, shrink=0.8)
    axes[0].set_ylabel("layer that reads")
    return svg(figure, f"likeness-{result['model']}")


def _names(result: Row) -> list[str]:
    """The layer, with its slot where it reads several."""
    layers = [reader["layer"] for reader in result["readers"]]
    return [f"{r['layer']} {r['slot']}" if layers.count(r["layer"]) > 1 else str(r["layer"]) for r in result["readers"]]


def shared_and_turned(result: Row) -> str:
    """One point a pair: shared geometry upwards, shared coordinates to the right."""
    readers = result["readers"]
    figure, axis = _figure(5.2, 3.6)
    pairs = [(a, b) for a in range(len(readers)) for b in range(a)]
    for colour, name, same in ((COLOURS[0], "same slot", True), (COLOURS[1], "other slot", False)):
        own = [(a, b) for a, b in pairs if (readers[a]["slot"] == readers[b]["slot"]) == same]
        x, y = ([result[what][a][b] for a, b in own] for what in ("cosine", "cka"))
        if own:
            axis.scatter(x, y, s=22, color=colour, alpha=0.7, label=name, linewidths=0)
    axis.axhline(result["shuffled"], color="#5f6b76", linestyle="--", linewidth=1, label="targets shuffled")
    axis.set_xlim(-1.02, 1.02)
    axis.set_ylim(min(-0.05, *(min(row) for row in result["cka"])), 1.02)
    axis.set_xlabel("mean cosine of two layers' read-outs")
    axis.set_ylabel("debiased CKA")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure, f"shared-{result['model']}")
