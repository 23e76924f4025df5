"""Figure of a MAD run: accuracy of every model on every task, over seeds, with the chance levels."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import PercentFormatter

from anchorlm.report.plots import _figure, _look, svg

ROOM = 0.8  # of the distance between two tasks, for the marks of all models


def accuracies(result: dict[str, Any]) -> str:
    """One group of marks a task: each model's mean and, over more than one seed, its standard deviation."""
    tasks, names = list(result["tasks"]), [row["model"] for row in result["rows"]]
    figure, axis = _figure(2.2 + 1.15 * len(tasks), 3.8)
    for number, row in enumerate(result["rows"]):
        shift = ROOM * ((number + 0.5) / len(names) - 0.5)
        drawn = [(x + shift, row["tasks"][name]) for x, name in enumerate(tasks) if row["tasks"][name]]
        look = {"label": row["model"], "linestyle": "none", "capsize": 2, **_look(row["model"], names)}
        spread = [found["deviation"] or 0.0 for _, found in drawn]
        axis.errorbar([x for x, _ in drawn], [found["mean"] for _, found in drawn], yerr=spread, **look)
    for x, name in enumerate(tasks):
        chance = result["tasks"][name]["chance"]
        axis.hlines(chance, x - 0.5, x + 0.5, color="#5f6b76", linestyle=":", label=None if x else "chance")
    axis.set_xticks(range(len(tasks)), ["\n".join(name.rsplit("-", 1)) for name in tasks])
    axis.set_xlim(-0.5, len(tasks) - 0.5)
    axis.set_ylim(-0.02, 1.04)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set_ylabel("scored tokens right")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure, "mad")


def percent(found: dict[str, Any] | None) -> str:
    """`98.7 ± 0.4` of a mean share and its deviation over seeds, in %; `-` for what was not run."""
    if found is None:
        return "-"
    spread = found["deviation"]
    return f"{100 * found['mean']:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")
