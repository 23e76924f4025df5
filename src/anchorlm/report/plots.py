"""Figures of a report as SVG text, drawn from result files alone; every axis has a label and a unit."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

STYLE = {"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "axes.spines.top": False,
         "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.alpha": 0.25}  # fmt: skip
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8e6bbf", "#c98a1b", "#5f6b76", "#00838f", "#9c4f2e")
MARKERS = "osD^vPX*"


def _look(name: str, names: Sequence[str]) -> dict[str, Any]:
    index = list(names).index(name)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def _figure(width: float = 6.4, height: float = 3.6) -> tuple[Figure, Any]:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.add_subplot()


def svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element that stands inside a page: no prolog, no metadata, ids of its own."""
    buffer = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)


def _errors(rows: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Distances below and above each value; 0 where there is no interval."""
    ends = [row["interval"] or [row["value"]] * 2 for row in rows]
    below = [row["value"] - end[0] for row, end in zip(rows, ends, strict=True)]
    return [below, [end[1] - row["value"] for row, end in zip(rows, ends, strict=True)]]


def perplexity_bars(result: dict[str, Any]) -> str:
    """Perplexity of each model with its 95 % interval; lower is better."""
    rows = [row for row in result["rows"] if row["value"] is not None]
    names = [row["model"] for row in rows]
    figure, axis = _figure(6.4, 0.9 + 0.45 * len(rows))
    colours = [_look(name, names)["color"] for name in names]
    bars = axis.barh(names, [row["value"] for row in rows], xerr=_errors(rows), color=colours, capsize=3, height=0.6)
    axis.bar_label(bars, [f" {row['value']:.2f}" for row in rows], label_type="center", color="white")
    axis.invert_yaxis()
    axis.set_xlabel(f"perplexity at {result['options']['context']:,} tokens (lower is better; bars: 95 % interval)")
    return svg(figure, f"ppl-{','.join(names)}")


def _lines(rows: list[dict], value: str, spread: str | None, label: str, name: str, log: bool) -> str:
    figure, axis = _figure()
    names = list(dict.fromkeys(row["model"] for row in rows))
    for model in names:
        own = [row for row in rows if row["model"] == model]
        x, y = [row["length"] for row in own], [row[value] for row in own]
        look = _look(model, names)
        if spread:
            low = [max(0.0, v - row[spread][0]) for v, row in zip(y, own, strict=True)]
            high = [max(0.0, row[spread][1] - v) for v, row in zip(y, own, strict=True)]
            axis.errorbar(x, y, yerr=[low, high], label=model, capsize=3, **look)
        else:
            axis.plot(x, y, label=model, **look)
    _length_axis(axis, [row["length"] for row in rows])
    if log:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    else:
        axis.set_ylim(bottom=0)
    axis.set_ylabel(label)
    axis.legend(frameon=False)
    return svg(figure, name)


def _length_axis(axis: Any, lengths: list[int]) -> None:
    ticks = sorted(set(lengths))
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:.3g}K" if x >= 1024 else f"{x:g}"))
    axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axis.set_xlabel("tokens read before")


def state_against_length(bench: dict[str, Any]) -> str:
    """Megabytes of cache or state after each length."""
    rows = [row | {"megabytes": row["state_bytes_most"] / 1e6} for row in bench["rows"]]
    return _lines(rows, "megabytes", None, "state of one sequence, MB", "state", log=True)


def decode_against_length(bench: dict[str, Any]) -> str:
    """Milliseconds for one more token after each length: median, 10 % to 90 %."""
    return _lines(bench["rows"], "decode_ms", "decode_spread", "one more token, ms", "decode", log=False)


def prefill_against_length(bench: dict[str, Any]) -> str:
    """Tokens a second while reading: median, slowest to fastest round."""
    label = "reading, tokens a second"
    return _lines(bench["rows"], "prefill_tokens_per_s", "prefill_spread", label, "prefill", log=False)


def peak_against_length(bench: dict[str, Any]) -> str:
    """Highest memory above that of the loaded model."""
    rows = [row | {"megabytes": row["peak_bytes"] / 1e6} for row in bench["rows"] if row.get("peak_bytes")]
    return _lines(rows, "megabytes", None, "peak memory above the model, MB", "peak", log=True)


READING = {
    "state": ("state of one sequence, MB", lambda point: point["state_bytes"] / 1e6),
    "time": ("one more token, ms", lambda point: point.get("decode_ms")),
    "speed": ("reading, tokens a second", lambda point: point.get("tokens_per_second")),
}


def reading(runs: Sequence[dict[str, Any]], what: str) -> str | None:
    """State, time or speed along a long text, one line a run; None when no run holds that figure."""
    label, value = READING[what]
    names = [run["model"] for run in runs]
    lines = {run["model"]: [(p["tokens"], value(p)) for p in run["points"] if value(p) is not None] for run in runs}
    if not any(lines.values()):
        return None
    figure, axis = _figure()
    for name, points in lines.items():
        if points:
            axis.plot(*zip(*points, strict=True), label=name, **_look(name, names))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axis.set_xlabel("tokens read")
    axis.set_ylabel(label)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    return svg(figure, f"reading-{what}")


def needle_map(row: dict[str, Any], score: str = "exact") -> str:
    """One model's share of needles found by length and depth; empty cells were not measured."""
    cells = row["cells"]
    lengths, depths = (sorted({cell[name] for cell in cells}) for name in ("length", "depth"))
    found = {(cell["depth"], cell["length"]): cell.get(score, math.nan) for cell in cells}
    grid = [[found.get((depth, length), math.nan) for length in lengths] for depth in depths]
    figure, axis = _shares(grid, [f"{length:,}" for length in lengths], [f"{depth:.0%}" for depth in depths])
    axis.set_xlabel("prompt, tokens")
    axis.set_ylabel("depth of the fact")
    return svg(figure, f"needles-{row['model']}-{score}")


def task_map(row: dict[str, Any]) -> str:
    """One model's mean score by task and length; empty cells were not measured."""
    cells = row["cells"]
    tasks, lengths = (list(dict.fromkeys(cell[name] for cell in cells)) for name in ("task", "length"))
    found = {(cell["task"], cell["length"]): cell["value"] for cell in cells}
    values = [[found.get((task, length)) for length in lengths] for task in tasks]
    grid = [[math.nan if value is None else value for value in line] for line in values]
    figure, axis = _shares(grid, [f"{length:,}" for length in lengths], tasks)
    axis.set_xlabel("prompt and answer, tokens")
    return svg(figure, f"tasks-{row['model']}")


def _shares(grid: list[list[float]], columns: list[str], rows: list[str]) -> tuple[Figure, Any]:
    """A grid of shares as colours and figures; NaN was not measured."""
    figure, axis = _figure(2.2 + 0.8 * len(columns), 1.4 + 0.34 * len(rows))
    image = axis.imshow(grid, vmin=0, vmax=1, cmap="YlGnBu", aspect="auto")
    axis.grid(False)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    for y, line in enumerate(grid):
        for x, share in enumerate(line):
            text = "n/a" if math.isnan(share) else f"{share:.0%}"
            axis.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if share > 0.6 else "black")
    figure.colorbar(image, ax=axis, format=FuncFormatter(lambda v, _: f"{v:.0%}"))
    return figure, axis
