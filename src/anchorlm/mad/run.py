"""Every task, model and seed, each kept once it is done, so that a stopped run goes on where it was."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..core import UserError, atomic_file
from ..data.mad import TASKS
from ..environment import environment
from ..eval.kept import Facts, check_kept, check_ours, check_run_folder
from ..eval.parts import Parts
from ..plan import Plan
from ..report.html import write_page
from . import page
from .learner import build
from .loop import learn, score
from .table import Mad

PACED = 3  # steps that tell how long one takes
TRAIN, TEST = 0, 1  # which rows a generator draws
Progress = Callable[[int, int], None]
Cell = tuple[str, str, int]  # task, model, seed


def run_mad(
    mad: Mad,
    out: str | Path,
    progress: Progress | None = None,
    say: Callable[[str], None] = print,
    device: str = "cpu",
) -> dict[str, Any]:
    """Train and test what is missing; returns what out/mad.json holds, beside which mad.md and mad.html are written.

    Every model of a task and seed sees the same rows. progress is called with the cells done and all of them. Raises
    UserError for a folder whose mad.json has other settings, or models, tasks or seeds that this run leaves out.
    """
    check_run_folder(out)
    out, plans = Path(out), mad.plans()
    facts = _facts(mad.model_dump(mode="json"))
    check_ours(out / "mad.json", "mad", ".md", ".html")
    check_kept(out / "mad.json", "mad", facts, lambda kept: _facts(kept["settings"]))
    parts = Parts(out / "parts")
    keys = {cell: _key(mad, plans, cell, device) for cell in cells(mad)}
    found = {cell: value for cell, key in keys.items() if (value := parts.find(key)) is not None}
    for cell, value in found.items():
        if not _is_measured(value):
            raise UserError(
                f"{parts.path(keys[cell])} is damaged; remove it, and {', '.join(map(str, cell))} is run again"
            )
    result = _write(mad, plans, found, out)
    for cell, key in keys.items():
        if cell in found:
            continue
        if progress:
            progress(len(found), len(keys))
        found[cell] = parts.run(key, lambda cell=cell: measure(mad, plans, cell, device))
        say(_line(cell, found[cell]))
        result = _write(mad, plans, found, out)
    return result


def _is_measured(value: Any) -> bool:
    """Whether a kept part is what `measure` gives."""

    def numbers(*found: Any) -> bool:
        return all(isinstance(one, int | float) and not isinstance(one, bool) for one in found)

    return (
        isinstance(value, dict)
        and numbers(*(value.get(name) for name in ("accuracy", "n", "steps", "cpu_seconds")))
        and all(isinstance(value.get(name), list) and numbers(*value[name]) for name in ("loss", "train_accuracy"))
    )


def _facts(settings: dict[str, Any]) -> Facts:
    named = {f"{what} {name}": value for what in ("model", "task") for name, value in settings[f"{what}s"].items()}
    seeds = {f"seed {seed}": None for seed in range(settings["seeds"])}
    free = ("title", "models", "tasks", "seeds")
    return Facts({name: value for name, value in settings.items() if name not in free}, named | seeds)


def cells(mad: Mad) -> Iterator[Cell]:
    """All of a seed before the next one, so that a stopped run can compare the models on what it has."""
    for seed in range(mad.seeds):
        for task in mad.tasks:
            for model in mad.models:
                yield task, model, seed


def measure(mad: Mad, plans: dict[str, Plan], cell: Cell, device: str = "cpu") -> dict[str, Any]:
    """Train one model on one task and test it: accuracy over `n` scored tokens, the loss on the way, CPU seconds."""
    name, model, seed = cell
    task, began = mad.tasks[name], time.process_time()
    learner = build(task, mad.model, plans[model], seed, device)
    curve = learn(learner, task, mad.training, _rows(name, seed, TRAIN))
    right, total = score(learner, task, mad.test, mad.training.batch, _rows(name, seed, TEST))
    del learner
    gc.collect()  # wrapped layers refer to each other
    return {
        "accuracy": right / total,
        "n": total,
        "steps": len(curve.loss),
        "loss": [round(value, 5) for value in curve.loss],
        "train_accuracy": [round(value, 4) for value in curve.accuracy],
        "cpu_seconds": round(time.process_time() - began, 2),
    }


def at_most(mad: Mad, out: Path, device: str = "cpu") -> float:
    """Seconds that the trainings which `out` lacks take when none ends early, from a few steps of each model now."""
    plans, parts = mad.plans(), Parts(out / "parts")
    missing = [cell for cell in cells(mad) if parts.find(_key(mad, plans, cell, device)) is None]
    alike = {(mad.tasks[task].length, model): task for task, model, _ in missing}
    paces = {key: _pace(mad, plans, (task, key[1], 0), device) for key, task in alike.items()}
    return sum(mad.training.steps * paces[mad.tasks[task].length, model] for task, model, _ in missing)


def _pace(mad: Mad, plans: dict[str, Plan], cell: Cell, device: str) -> float:
    """Seconds of one step; the first, which prepares what later ones find ready, is not counted."""
    name, model, seed = cell
    learner, rows = build(mad.tasks[name], mad.model, plans[model], seed, device), _rows(name, seed, TRAIN)
    few = mad.training.model_copy(update={"steps": PACED})
    learn(learner, mad.tasks[name], few.model_copy(update={"steps": 1}), rows)
    began = time.perf_counter()
    learn(learner, mad.tasks[name], few.model_copy(update={"calibrate": False}), rows)
    return (time.perf_counter() - began) / PACED


def _rows(task: str, seed: int, which: int) -> np.random.Generator:
    return np.random.default_rng([seed, list(TASKS).index(task), which])


def _key(mad: Mad, plans: dict[str, Plan], cell: Cell, device: str) -> dict[str, Any]:
    """All that fixes a cell; its model's name is not part of it."""
    name, model, seed = cell
    sizes = {"model": mad.model.model_dump(), "training": mad.training.model_dump(), "test": mad.test}
    place = {"seed": seed, "device": device.partition(":")[0]}
    return {"mad": name, "task": mad.tasks[name].model_dump(), "plan": plans[model].to_dict(), **place, **sizes}


def _line(cell: Cell, found: dict[str, Any]) -> str:
    name, model, seed = cell
    return (
        f"{name}, {model}, seed {seed}: {found['accuracy']:.1%} of {found['n']:,} tokens, "
        f"{found['steps']} steps, {found['cpu_seconds']:.0f} s"
    )


def _write(mad: Mad, plans: dict[str, Plan], found: dict[Cell, Any], out: Path) -> dict[str, Any]:
    """mad.json, mad.md and mad.html from what is there; returns the first."""
    result = page.result(mad, plans, found) | {"environment": environment()}
    with atomic_file(out / "mad.json") as file:
        json.dump(result, file, indent=1)
    with atomic_file(out / "mad.md") as file:
        file.write(page.markdown(result))
    write_page({"mad": [result]}, out / "mad.html", mad.title)
    return result
