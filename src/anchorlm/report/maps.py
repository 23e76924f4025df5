"""Figures of learned read maps: stretch, ranked angles against a random turn, and read-outs on their way through."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.lines import Line2D

from anchorlm.report.branches import panels
from anchorlm.report.plots import COLOURS, svg

MOST = 8  # readers whose way is drawn

Row = dict[str, Any]


def turns(result: Row) -> str:
    """Left the stretch by rank, right the angles by rank; bands: quartiles over heads; dashed: a random turn."""
    rows = result["readers"]
    figure, (stretch, angles) = panels(2, 9.6, 3.7, down=False)
    for row, colour in zip(rows, _colours(len(rows)), strict=True):
        for axis, name in ((stretch, "stretch"), (angles, "angles")):
            ranks = range(1, len(row[name]["median"]) + 1)
            axis.plot(ranks, row[name]["median"], color=colour, linewidth=1.4, label=_reader(row))
            axis.fill_between(ranks, row[name]["low"], row[name]["high"], color=colour, alpha=0.12, linewidth=0)
        planes = range(1, len(row["null_angles"]) + 1)
        angles.plot(planes, row["null_angles"], color=colour, linewidth=1, linestyle="--")
    stretch.axhline(1, color="#5f6b76", linewidth=0.8)
    stretch.set_xlabel("rank of the direction")
    stretch.set_ylabel("stretch, times")
    angles.set_xlabel("rank of the plane")
    angles.set_ylabel("rotation angle, rad")
    angles.set_ylim(bottom=0)
    handles, labels = stretch.get_legend_handles_labels()
    dashed = Line2D([], [], color="#5f6b76", linestyle="--", linewidth=1)
    figure.legend([*handles, dashed], [*labels, "random turn"], loc="outside right center", frameon=False, fontsize=8)
    return svg(figure, f"turns-{result['model']}")


def _colours(count: int) -> list[Any]:
    """The usual colours, or for many readers shades from the first layer to the last."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    scale = matplotlib.colormaps["viridis"]
    return [scale(0.92 * index / (count - 1)) for index in range(count)]


def _reader(row: Row) -> str:
    return f"layer {row['layer']} ({row['slot']})"


def leading(result: Row) -> str:
    """Share of the squared rotation in the leading planes; grey: the middle 50 % of random turns."""
    rows = [row for row in result["readers"] if row["share"] is not None]
    figure, (axis,) = panels(1, 2.0 + 0.55 * max(6, len(rows)), 3.2)
    share = [row["share"] for row in rows]
    middle = [100 * s["median"] for s in share]
    reach = [[100 * (s["median"] - s["low"]) for s in share], [100 * (s["high"] - s["median"]) for s in share]]
    axis.bar([str(row["layer"]) for row in rows], middle, yerr=reach, color=COLOURS[0], capsize=3, width=0.65)
    null = result["null"]["share"]
    axis.axhspan(100 * null["low"], 100 * null["high"], color="#5f6b76", alpha=0.35, linewidth=0)
    axis.axhline(100 * null["median"], color="#5f6b76", linestyle="--", linewidth=1, label="random turn")
    axis.set_ylim(0, 105)
    axis.set_xlabel("layer that reads")
    axis.set_ylabel(f"rotation in {result['leading']} planes, %")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure, f"leading-{result['model']}")


def ways(result: Row) -> str | None:
    """Read-outs of head 0 in each reader's leading plane: as answered, stretched, turned; None without text."""
    rows = [row for row in result["readers"] if row["way"]][:MOST]
    if not rows:
        return None
    columns = min(4, len(rows))
    lines = -(-len(rows) // columns)
    figure, axes = panels(lines, 2.5 * columns + 1.3, 2.6 * lines)
    figure.clear()
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axis, row in zip(axes, rows, strict=False):
        _way(axis, row)
    for axis in axes[len(rows) :]:
        axis.set_visible(False)
    figure.supxlabel("first direction of the plane", fontsize=10)
    figure.supylabel("second direction of the plane", fontsize=10)
    dots = [Line2D([], [], marker="o", linestyle="", color=COLOURS[i]) for i in range(3)]
    figure.legend(dots, ["answered", "stretched", "turned"], loc="outside right center", frameon=False, fontsize=8)
    return svg(figure, f"ways-{result['model']}")


def _way(axis: Any, row: Row) -> None:
    way = row["way"]
    stages = [way[name] for name in ("answered", "stretched", "turned")]
    for index, points in enumerate(stages):
        axis.scatter(*zip(*points, strict=True), s=12, color=COLOURS[index], zorder=3, linewidths=0)
    for path in zip(*stages, strict=True):
        axis.plot(*zip(*path, strict=True), color="#5f6b76", linewidth=0.6, alpha=0.7)
    far = 1.1 * max(abs(value) for points in stages for point in points for value in point)
    axis.set_xlim(-far, far)
    axis.set_ylim(-far, far)
    axis.set_aspect("equal")
    axis.tick_params(labelsize=7)
    axis.set_title(f"layer {row['layer']}: {way['angle']:.2f} rad", fontsize=9)
