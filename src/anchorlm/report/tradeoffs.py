"""Figures of an ablation and of cost: what slots give, what they take, and what they cover."""

from __future__ import annotations

from typing import Any

from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from anchorlm.report.branches import panels
from anchorlm.report.plots import COLOURS, MARKERS, _errors, _figure, svg

GROUPS = {"all": "all tokens", "cross_window": "cross-window tokens"}
WIDE = 4  # times the smallest figure, from which an axis is logarithmic
WINDOW, STATE, SINKS = COLOURS[2], COLOURS[1], COLOURS[4]

Row = dict[str, Any]


def changes(result: Row) -> str:
    """Change of loss against the model as it is, with 95 % intervals; left of zero is better."""
    rows = [row for row in result["rows"][1:] if row["change"]]
    figure, axis = _figure(6.8, 1.1 + 0.5 * len(rows))
    for offset, (name, label) in zip((-0.19, 0.19), GROUPS.items(), strict=True):
        held = [(place, row["change"][name]) for place, row in enumerate(rows) if name in row["change"]]
        places, estimates = [place + offset for place, _ in held], [estimate for _, estimate in held]
        colour = COLOURS[0 if name == "all" else 1]
        values = [estimate["value"] for estimate in estimates]
        axis.barh(places, values, xerr=_errors(estimates), height=0.36, color=colour, capsize=2, label=label)
    axis.axvline(0, color="#1d232a", linewidth=0.8)
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("change of loss, nats a token (right: worse than the model as it is)")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure, f"changes-{result['model']}")


def sizes(result: Row) -> str | None:
    """Perplexity of cross-window tokens against the window, one line a chunk and number of kept tokens."""
    rows = [row for row in result["grid"] if "cross_window" in row["groups"]]
    if len(rows) < 2:
        return None
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(_line(row["sizes"]), []).append(row)
    figure, axis = _figure(6.8, 3.6)
    for index, (name, own) in enumerate(lines.items()):
        x = [row["sizes"]["window"] or 0 for row in own]
        look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        estimates = [{"value": g["ppl"], "interval": g["interval"]} for g in (r["groups"]["cross_window"] for r in own)]
        axis.errorbar(x, [e["value"] for e in estimates], yerr=_errors(estimates), label=name, capsize=2,
                      elinewidth=0.6, **look)  # fmt: skip
    axis.set_xscale("log", base=2)
    ticks = sorted({row["sizes"]["window"] or 0 for row in rows})
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("window, tokens")
    axis.set_ylabel("perplexity, cross-window")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure, f"sizes-{result['model']}")


def _line(found: Row) -> str:
    parts = [("chunk", found["chunk"]), ("kept", found["kept"])]
    return ", ".join(f"{name} {size}" for name, size in parts if size) or "as it is"


def ratio(result: Row) -> str:
    """Bytes of all states against how many hybrid layers stand between two full ones; labels: number of states."""
    rows = result["ratios"]
    figure, axis = _figure(6.8, 3.4)
    for index, (kind, label) in enumerate((("private", "a state a layer"), ("shared", "a state a block"))):
        x, y = [row["ratio"] for row in rows], [row["state_bytes"][kind] / 1e6 for row in rows]
        axis.plot(x, y, color=COLOURS[1 - index], marker=MARKERS[index], label=label)
        for row, place, value in zip(rows, x, y, strict=True):
            shift = (0, 7) if kind == "private" else (0, -13)
            axis.annotate(str(row["states"][kind]), (place, value), xytext=shift, textcoords="offset points",
                          ha="center", fontsize=8)  # fmt: skip
    axis.set_xticks([row["ratio"] for row in rows], [f"{row['ratio']}:1" for row in rows])
    axis.set_ylim(0, 1.15 * max(row["state_bytes"]["private"] for row in rows) / 1e6)
    axis.set_xlabel("hybrid layers to one with full attention")
    axis.set_ylabel("all states of one sequence, MB")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure, f"ratio-{result['model']}")


def covered(result: Row) -> str:
    """What readers see of the past at some places of a text: state, window, sinks; white is seen by neither."""
    rows = result["coverage"]
    figure, axes = panels(len(rows), 7.2, 0.7 + 2.2 * len(rows), sharex=True)
    for axis, row in zip(axes, rows, strict=True):
        for y, place in enumerate(row["places"]):
            for name, colour, shift in (("state", STATE, -0.2), ("window", WINDOW, 0.2), ("sinks", SINKS, 0.2)):
                first, last = place[name] or (0, -1)
                axis.barh(y + shift, last - first + 1, left=first, height=0.38, color=colour)
        held = "" if row["held"] is None else f", at most {row['held']} tokens of it kept"
        axis.set_title(f"{', '.join(row['slots'])}: {row['reach']}, chunk {row['chunk']}{held}", fontsize=9, loc="left")
        axis.set_yticks(range(len(row["places"])), [f"{place['at']:,}" for place in row["places"]], fontsize=8)
        axis.set_ylabel("token that reads")
    axes[-1].set_xlabel("tokens that it can be told about")
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    colours = {"state": STATE, "window": WINDOW, "sinks": SINKS}
    patches = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=patches, loc="outside right center", frameon=False)
    return svg(figure, f"covered-{result['model']}")


def scatter(found: Row) -> str:
    """State bytes against cross-window perplexity, one point a row of the table, with 95 % intervals."""
    rows = sorted(found["rows"], key=lambda row: row["bytes"])
    figure, axis = _figure(8.2, max(3.8, 0.5 + 0.2 * len(rows)))
    for index, row in enumerate(rows):
        group = row["cross_window"] or row["ppl"]
        marker = MARKERS[(index // len(COLOURS) + index) % len(MARKERS)]
        estimate = {"value": group["ppl"], "interval": group["interval"]}
        axis.errorbar([row["bytes"] / 1e6], [group["ppl"]], yerr=_errors([estimate]), label=row["name"], linestyle="",
                      capsize=2, elinewidth=0.6, color=COLOURS[index % len(COLOURS)], marker=marker)  # fmt: skip
    _log(axis, "x")
    heights = [(row["cross_window"] or row["ppl"])["ppl"] for row in rows]
    if heights and max(heights) > WIDE * min(heights):
        _log(axis, "y")
    axis.set_xlabel(f"state after {found['context']:,} tokens, MB")
    axis.set_ylabel("perplexity, cross-window")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    return svg(figure, f"scatter-{found['table']}")


def _log(axis: Any, which: str) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5 of each power of ten."""
    getattr(axis, f"set_{which}scale")("log")
    side = getattr(axis, f"{which}axis")
    side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    side.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""))
