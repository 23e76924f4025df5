"""Figures of a placement: which layer needs which distance, and what each further byte buys."""

from __future__ import annotations

from typing import Any

from matplotlib.colors import SymLogNorm
from matplotlib.ticker import FuncFormatter

from anchorlm.report.plots import _errors, _figure, _look, svg

LINEAR = 0.01  # nats a token; below it colours grow linearly, above by powers of ten


def heat_map(result: dict[str, Any]) -> str:
    """Rows are distances (and needles), columns layers; colour: rise of the loss in nats a token."""
    rows = sorted(result["layers"], key=lambda row: row["layer"])
    names = [name for name in ("new", *result["bins"], "all", "needle") if any(name in row["change"] for row in rows)]
    grid = [[row["change"][name]["value"] if name in row["change"] else float("nan") for row in rows] for name in names]
    top = max(LINEAR, *(abs(value) for line in grid for value in line if value == value))
    figure, axis = _figure(2.4 + 0.26 * len(rows), 1.5 + 0.3 * len(names))
    norm = SymLogNorm(linthresh=LINEAR, vmin=-top, vmax=top)
    image = axis.imshow(grid, cmap="RdBu_r", norm=norm, aspect="auto", interpolation="nearest")
    axis.grid(False)
    axis.set_xticks(range(len(rows)), [row["layer"] for row in rows], fontsize=8)
    axis.set_yticks(range(len(names)), [_label(name) for name in names])
    axis.set_xlabel("layer that sees only the window")
    axis.set_ylabel("tokens since the word pair")
    figure.colorbar(image, ax=axis, label="rise of loss, nats a token", format="%.2g")
    return svg(figure, "place-heat")


def _label(name: str) -> str:
    low, dash, high = name.partition("-")
    return f"{int(low) + 1:,} to {int(high):,}" if dash else {"all": "all tokens", "needle": "needles"}.get(name, name)


def curve(result: dict[str, Any]) -> str:
    """Loss of every measured plan over the bytes it adds to a window in every layer."""
    points = result["pareto"]
    names = list(dict.fromkeys(point["series"] for point in points))
    figure, axis = _figure()
    for name in names:
        own = sorted((point for point in points if point["series"] == name), key=lambda point: point["bytes"])
        estimates = [point["loss"]["all"] for point in own]
        x, y = [point["bytes"] / 1e6 for point in own], [estimate["value"] for estimate in estimates]
        axis.errorbar(x, y, yerr=_errors(estimates), label=name, capsize=2, elinewidth=0.6, **_look(name, names))
    axis.set_xscale("symlog", linthresh=1)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda megabytes, _: f"{megabytes:g}"))
    axis.set_xlim(left=-0.05)
    axis.set_xlabel("state beside the windows, MB")
    axis.set_ylabel("loss, nats a token")
    axis.legend(frameon=False)
    return svg(figure, "place-curve")
