"""A MAD run as plain data and as a page of Markdown, in the form of Table 4 of the Anchor paper (arXiv 2611.04327)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from ..describe import bytes_at
from ..plan import Plan
from ..report.mad import percent
from ..results.core_table import markdown_table
from .table import Mad

# The columns of the paper's table, each the mean of its tasks; its last column is the mean of these five.
COLUMNS: dict[str, tuple[str, ...]] = {
    "in-context and noisy recall": ("in-context-recall", "noisy-recall"),
    "fuzzy recall": ("fuzzy-recall",),
    "memorisation": ("memorisation",),
    "selective copying": ("selective-copying",),
    "compression": ("compression",),
}
AVERAGE = "average"
CHANCE = "chance"
Found = Mapping[tuple[str, str, int], Mapping[str, Any]]


def result(mad: Mad, plans: Mapping[str, Plan], found: Found) -> dict[str, Any]:
    """What mad.json holds: settings, tasks with their chance levels, and one row a model."""
    return {
        "kind": "mad",
        "settings": mad.model_dump(mode="json"),
        "tasks": {name: task.model_dump() | {"chance": task.chance()} for name, task in mad.tasks.items()},
        "chance": _columns({name: [task.chance()] for name, task in mad.tasks.items()}),
        "rows": [_row(mad, name, plan, found) for name, plan in plans.items()],
    }


def _row(mad: Mad, name: str, plan: Plan, found: Found) -> dict[str, Any]:
    """One model: each task's cells by seed, and the paper's columns over the seeds that have all tasks."""
    longest = max(task.length for task in mad.tasks.values())
    done = {task: [found.get((task, name, seed)) for seed in range(mad.seeds)] for task in mad.tasks}
    accuracies = {task: [cell and cell["accuracy"] for cell in cells] for task, cells in done.items()}
    return {
        "model": name,
        "plan": plan.to_dict(),
        "state_bytes": bytes_at(plan, mad.shape(), longest),
        "cells": done,
        "tasks": {task: summary(values) for task, values in accuracies.items()},
        "columns": _columns(accuracies),
        "cpu_seconds": sum(cell["cpu_seconds"] for cells in done.values() for cell in cells if cell),
        "missing": [f"{task}, seed {seed}" for task, cells in done.items() for seed, c in enumerate(cells) if not c],
    }


def summary(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Mean and standard deviation over the seeds that were run; None when none was, no deviation of a single one."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    return {"mean": mean(there), "deviation": stdev(there) if len(there) > 1 else None, "values": there}


def _columns(accuracies: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """The paper's columns and their mean, taken seed by seed; a column lacks what one of its tasks lacks."""
    seeds = max(map(len, accuracies.values()))
    by_seed = [{task: values[seed] for task, values in accuracies.items()} for seed in range(seeds)]
    columns = {name: [_mean([one.get(task) for task in tasks]) for one in by_seed] for name, tasks in COLUMNS.items()}
    columns[AVERAGE] = [_mean([columns[name][seed] for name in COLUMNS]) for seed in range(seeds)]
    return {name: summary(values) for name, values in columns.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    return None if None in values else mean(value for value in values if value is not None)


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    settings, facts = result["settings"], result["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return "\n".join(
        [
            f"# {settings['title']}",
            "",
            _what(result),
            "",
            *markdown_table(_paper_table(result)),
            "",
            f"Average: the mean of the five columns, as in the paper. {_spread(settings['seeds'])}",
            "",
            "Every task by itself:",
            "",
            *markdown_table(_task_table(result)),
            "",
            *markdown_table(_model_table(result), texts=2),
            "",
            *_missing(result["rows"]),
            f"Seeds 0 to {settings['seeds'] - 1}, float32, {facts['threads']} threads, {facts['processor']}; "
            f"{versions}.",
            "",
        ]
    )


def _what(result: dict[str, Any]) -> str:
    settings = result["settings"]
    sizes, training = settings["model"], settings["training"]
    asked = "the scored tokens" if training["targets"] == "scored" else "what the published tasks ask for"
    return (
        f"Accuracy in %, over the scored tokens of {settings['test']:,} rows that no model was trained on. Models of "
        f"{sizes['layers']} layers and width {sizes['hidden']}, window {settings['window']}, {settings['sinks']} sinks,"
        f" slots of chunk {settings['slot'].get('chunk', 'as the window')}, every weight trained from scratch on "
        f"{asked}: at most {training['steps']:,} steps of {training['batch']} fresh rows, AdamW at {training['lr']:g}; "
        f"done earlier once {training['enough']:.1%} of the training answers are right. All models of a task and seed "
        "see the same rows. Chance: a guess that knows the vocabulary of the answer and nothing of the row."
    )


def _spread(seeds: int) -> str:
    return (
        f"Mean ± standard deviation over {seeds} seeds; what only one has been run of has none."
        if seeds > 1
        else "One seed."
    )


def _paper_table(result: dict[str, Any]) -> list[list[str]]:
    names = [*COLUMNS, AVERAGE]
    lines = [[row["model"], *(percent(row["columns"][name]) for name in names)] for row in result["rows"]]
    return [["model", *names], *lines, [CHANCE, *(percent(result["chance"][name]) for name in names)]]


def _task_table(result: dict[str, Any]) -> list[list[str]]:
    tasks = result["tasks"]
    lines = [[row["model"], *(percent(row["tasks"][name]) for name in tasks)] for row in result["rows"]]
    chances = [f"{100 * task['chance']:.1f}" for task in tasks.values()]
    facts = [[field, *(f"{task[field]:,}" for task in tasks.values())] for field in ("length", "vocab")]
    return [["model", *tasks], *lines, [CHANCE, *chances], *facts]


def _model_table(result: dict[str, Any]) -> list[list[str]]:
    longest = max(task["length"] for task in result["tasks"].values())
    heads = ["model", "slots: writer and readers", f"state at {longest}", "CPU minutes"]
    return [heads, *([row["model"], *_model_cells(row)] for row in result["rows"])]


def _model_cells(row: dict[str, Any]) -> list[str]:
    groups = [f"{slot['write']}: {', '.join(map(str, slot['read']))}" for slot in row["plan"]["slots"].values()]
    return ["; ".join(groups) or "none", f"{row['state_bytes'] / 1e3:,.1f} KB", f"{row['cpu_seconds'] / 60:.1f}"]


def _missing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"- `{row['model']}`: {_first(row['missing'])}" for row in rows if row["missing"]]
    return ["Not run:", "", *lines, ""] if lines else []


def _first(missing: Sequence[str], shown: int = 2) -> str:
    rest = len(missing) - shown
    return "; ".join(missing[:shown]) + (f" and {rest} more trainings" if rest > 0 else "")
