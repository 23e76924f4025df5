"""The folder of a run: what it was started with, where it stands, and the model it ends with.

config.yaml  env.json  trainable-<stage>.json  metrics.jsonl  checkpoints/   and, at the end, the files of the model
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from ..convert.files import CHECKPOINTS, MACHINE
from ..convert.files import RECIPE as CONFIG
from ..convert.save import command_line, versions
from ..core import UserError, atomic_file, occupied, sweep
from ..plan import Plan
from ..settings import Recipe, changed, flatten
from .checkpoint import NAME, clear_unfinished, newest_complete, read_position

WRITTEN = (CONFIG, MACHINE, "metrics.jsonl", "trainable-stage1.json", "trainable-stage2.json")  # while a run goes on
FREE = ("name", "eval_every", "eval_batches", "save_every", "keep_last", "log", "checkpoint", "shard")


def identity(recipe: Recipe, model: Any, store: Any, world: int = 1) -> dict[str, Any]:
    """What must be the same for a run to go on; plain data, so that a difference can be named.

    data.batch counts the rows of all `world` processes, so that another number of them may go on with as many rows.
    """
    base = getattr(model.config, "base_fingerprint", None) or getattr(model.config, "base", None)
    loaded = str(next(model.backbone.parameters()).dtype).removeprefix("torch.")
    dtype = loaded if recipe.dtype == "auto" else recipe.dtype
    return identity_of(recipe, model.plan, store, base, world) | {"dtype": dtype}


def identity_of(recipe: Recipe, plan: Plan, store: Any, base: str | None, world: int = 1) -> dict[str, Any]:
    """The same for a model that is not opened. `base`: fingerprint or name; without a store there is no text."""
    texts = None if store is None else {"texts": store.content_hash, "tokenizer": store.tokenizer_hash}
    settings = recipe.model_dump(mode="json")
    settings["data"]["batch"] *= world
    return {"recipe": _fixed(settings), "plan": plan.to_dict(), "data": texts, "base": base}


def _fixed(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in FREE}


def started_with(out: Path) -> dict[str, Any]:
    """The identity that a run's folder was started with. Raises UserError when the folder holds no run."""
    try:
        stored = yaml.safe_load((out / CONFIG).read_text(encoding="utf-8"))
        return {**stored, "recipe": _fixed(stored["recipe"])}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError):
        raise UserError(f"{out / CONFIG} is missing or damaged; {out} is no folder of a training run") from None


def check_identity(stored: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    """Raise UserError, naming the first thing that changed, unless the run may resume.

    The dtype is compared where both know it: not of a model that is not opened, nor of a run begun by an older version.
    """
    unknown = {"dtype"} - (stored.keys() & wanted.keys())
    old, new = ({key: part for key, part in side.items() if key not in unknown} for side in (stored, wanted))
    if found := first_change(old, new):
        raise UserError(
            f"checkpoint {path} belongs to another run: {found}; use the old value or another output folder"
        )


def first_change(stored: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """The first thing in which two identities differ, as `key was A, now B (and n more)`; None when they are the same.

    A setting that did not exist when the first was stored counts as its default.
    """
    new, defaults = flatten(wanted), flatten(Recipe().model_dump(mode="json"))
    old = {f"recipe.{k}": v for k, v in defaults.items() if f"recipe.{k}" in new} | flatten(stored)
    return changed(old, new)


def find_checkpoint(out: Path, resume: str, say: Callable[[str], None]) -> Path | None:
    """The checkpoint to go on from. `resume`: auto (the newest complete one), never, or a checkpoint folder."""
    root = out / CHECKPOINTS
    if resume == "never":
        _refuse_occupied(out)
        return None
    if resume != "auto":
        if not NAME.fullmatch(Path(resume).name) or not Path(resume).is_dir():
            raise UserError(f"resume {resume!r} is not a checkpoint; use auto, never or .../checkpoints/step-NNNNNNNN")
        read_position(Path(resume))
        return Path(resume)
    clear_unfinished(root)
    found, remarks = newest_complete(root)
    for remark in remarks:
        say(remark)
    if found is None and not (out / CONFIG).is_file():
        _refuse_occupied(out)
    return found


def _refuse_occupied(out: Path) -> None:
    if out.exists() and (not out.is_dir() or occupied(out)):
        raise UserError(f"output {out} exists and is not empty; choose another folder")


def write_start(out: Path, recipe: Recipe, wanted: dict[str, Any], preview: dict[str, Any]) -> None:
    """Record the resolved recipe, the identity and the environment of the run; files that a kill left go."""
    for name in WRITTEN:
        sweep(out / name)
    config = {"recipe": recipe.model_dump(mode="json"), **{k: v for k, v in wanted.items() if k != "recipe"}}
    with atomic_file(out / CONFIG) as file:
        yaml.safe_dump(config, file, sort_keys=False)
    write_json(out / MACHINE, environment() | {"preview": preview})


def write_json(path: Path, values: Any) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(values, indent=2, default=str) + "\n")


def environment() -> dict[str, Any]:
    """Versions and machine: what bit-identical repetition depends on."""
    return {
        "command": command_line(),
        "versions": versions(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def publish(temporary: Path, out: Path) -> None:
    """Move a saved model's files into the run's folder; `config.json`, which makes it a model, comes last."""
    items = sorted(temporary.iterdir(), key=lambda item: item.name == "config.json")
    for item in items:
        target = out / item.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(item, target)
    temporary.rmdir()
