"""Figures of reproduced items: curves of a training, and what a change costs, with intervals."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from anchorlm.report import branches, mad, maps, tradeoffs
from anchorlm.report.plots import STYLE, _errors, _figure, _look, svg

PANELS = (("mse", "held-out transfer error"), ("perplexity", "held-out perplexity"))


def curves(spec: dict[str, Any], name: str) -> str:
    """Transfer error and perplexity over steps, side by side, one line for each way to train."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.8), layout="constrained")
        axes = figure.subplots(1, len(PANELS))
    names = list(spec["curves"])
    for axis, (what, label) in zip(axes, PANELS, strict=True):
        for arm, points in spec["curves"].items():
            axis.plot([p["step"] for p in points], [p[what] for p in points], label=arm, **_look(arm, names))
        _log_axis(axis)
        axis.set_xlabel("steps of stage 1")
        axis.set_ylabel(label)
    axes[0].legend(frameon=False)
    return svg(figure, f"{name}-curves")


def _log_axis(axis: Any) -> None:
    """Powers of ten, with plain numbers at every tick there is."""
    axis.set_yscale("log")
    plain = FuncFormatter(lambda y, _: f"{y:,.3g}" if y < 1000 else f"{y:,.0f}")
    axis.yaxis.set_major_formatter(plain)
    low, high = axis.get_ylim()
    axis.yaxis.set_minor_formatter(plain if high / low < 20 else FuncFormatter(lambda y, _: ""))


def bars(spec: dict[str, Any], name: str) -> str:
    """Change of the loss of each model with its 95 % interval; 0 is the one it is compared with."""
    rows = spec["bars"]
    names = [row["name"] for row in rows]
    figure, axis = _figure(7.2, 0.9 + 0.36 * len(rows))
    values = [row["value"] for row in rows]
    axis.barh(names, values, xerr=_errors(rows), color=_look(names[0], names)["color"], capsize=3, height=0.6)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.invert_yaxis()
    axis.locator_params(axis="x", nbins=6)  # more labels of this many digits would touch
    axis.set_xlabel(spec.get("label", "change of the loss, nats a token (bars: 95 % interval)"))
    return svg(figure, f"{name}-bars")


def lines(spec: dict[str, Any], name: str) -> str:
    """One line a model, of [x, y] points; lengths stand on a scale of powers of two."""
    figure, axis = _figure(7.6, 3.6)
    names = list(spec["series"])
    for model, points in spec["series"].items():
        if points:
            axis.plot(*zip(*points, strict=True), label=model, **_look(model, names))
    ticks = sorted({x for points in spec["series"].values() for x, _ in points})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_ylim(0, spec.get("top"))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.12g}"))
    return _named(figure, axis, spec, f"{name}-lines")


def points(spec: dict[str, Any], name: str) -> str:
    """One mark a model, with its 95 % interval upwards and downwards."""
    figure, axis = _figure(8.2, 3.8)
    names = [point["name"] for point in spec["points"]]
    for point in spec["points"]:
        estimate = {"value": point["y"], "interval": point["interval"]}
        look = {"linestyle": "", "capsize": 3, "label": point["name"], **_look(point["name"], names)}
        axis.errorbar([point["x"]], [point["y"]], yerr=_errors([estimate]), **look)
    return _named(figure, axis, spec, f"{name}-points")


def _named(figure: Figure, axis: Any, spec: dict[str, Any], name: str) -> str:
    axis.set_xlabel(spec["x"])
    axis.set_ylabel(spec["y"])
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return svg(figure, name)


def _of(plot: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any], str], str]:
    """A figure of an analysis or a MAD run, whose result stands in the item."""
    return lambda spec, name: plot(spec["result"])


KINDS: dict[str, Callable[[dict[str, Any], str], str]] = {
    "curves": curves,
    "bars": bars,
    "lines": lines,
    "points": points,
    "likeness": _of(branches.likeness),
    "pairs": _of(branches.shared_and_turned),
    "knocks": lambda spec, name: branches.knock_map(spec["result"], spec["text"]),
    "turns": _of(maps.turns),
    "leading": _of(maps.leading),
    "ways": _of(lambda result: maps.ways(result) or ""),
    "ratio": _of(tradeoffs.ratio),
    "mad": _of(mad.accuracies),
}


def drawn(item: dict[str, Any]) -> list[tuple[str, str]]:
    """(caption, SVG) of each figure of an item, in its order."""
    return [(spec["caption"], _draw(json.dumps(spec), item["name"])) for spec in item["figures"]]


@lru_cache(maxsize=128)  # a page is written again after every item
def _draw(spec: str, name: str) -> str:
    figure = json.loads(spec)
    return KINDS[figure["kind"]](figure, name)
