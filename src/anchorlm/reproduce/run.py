"""Measure items one after the other, or take what was measured before, and write one page of all that is known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..convert.bases import load_base_config
from ..core import UserError, atomic_file, check_folder, pick_dtype
from ..data import find_files
from ..environment import environment
from ..eval.kept import check_ours, check_run_folder
from ..eval.suite import Progress
from ..report.html import BROKEN, write_page
from ..results import Job
from ..results.measure import TEST
from ..results.table import BASE
from . import page, table1
from .items import ITEMS, Item, chosen
from .lab import Lab, Untrained, ask, check_text
from .scale import Scale
from .sizes import ANALYSES, SUITES

PLAIN = ("base", "window", "sinks")  # of a scale: what a model is made from where nothing is trained
KIND = "reproduced"  # of the file that holds one item


def reproduce(
    names: str | Sequence[str],
    scale: Scale,
    job: Job,
    progress: Progress | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure the items and write reproduce.json, reproduce.md and reproduce.html to job.out; returns the first.

    An item that was measured at the same scale on the same texts is taken as it is; one that was stopped goes on. With
    job.measure False nothing is run. The page shows every item, also those of earlier runs and those not run yet. With
    job.train_rows False, items whose rows are not trained are left out, and the page says why. Raises UserError for
    unknown items, when all are left out and, before anything is written, for texts that are missing.
    """
    wanted = chosen([names] if isinstance(names, str) else names) if job.measure else []
    check_out(job.out, wanted)
    lab, skipped = Lab(scale, job, progress, say), {}
    keys = {name: key_of(ITEMS[name], scale, job) for name in wanted}
    check(lab, [name for name, key in keys.items() if kept(job.out, name).get("key") != key])
    for name, key in keys.items():
        if kept(job.out, name).get("key") == key:
            say(f"{name}: measured before")
            continue
        say(f"{name}: {ITEMS[name].title}")
        try:
            found = ITEMS[name].build(lab)
        except Untrained as error:
            skipped[name] = str(error)
            say(f"{name}: left out; {error}")
            continue
        with atomic_file(job.out / f"{name}.json") as file:
            facts = {"key": key, "texts": _names(job), "environment": environment()}
            json.dump({"kind": KIND, "name": name, **facts, **found}, file, indent=1)
        _write(job.out, skipped)
    if skipped and len(skipped) == len(wanted):
        raise Untrained(next(iter(skipped.values())))
    return _write(job.out, skipped)


def check(lab: Lab, names: Sequence[str]) -> None:
    """Raise UserError for rows, a base or texts with which one of the items cannot be measured; nothing is written."""
    if any(ITEMS[name].base for name in names):
        load_base_config(lab.scale.base)
    items = [ITEMS[name] for name in names if ITEMS[name].texts]
    for table in dict.fromkeys(item.table for item in items):
        ours = [item for item in items if item.table == table]
        run = lab.prepare(table, _with_starts(lab, table, [row for item in ours for row in item.rows]))
        if any(item.build is table1.build for item in ours):
            table1.off_groups(lab.scale, run.shape)
        for what in dict.fromkeys(size for item in ours for size in item.sizes):
            if what in ANALYSES:
                check_text(lab, what, run.stores[TEST])
            elif what in SUITES:
                ask(lab, run, what)


def _with_starts(lab: Lab, table: str, names: Sequence[str]) -> list[str]:
    """The rows, each after the one that it starts from."""
    found: dict[str, None] = {}
    for name in names:
        start = lab.scale.table(table).row(name, "reproduce").start
        found |= dict.fromkeys([*(() if start == BASE else _with_starts(lab, table, [start])), name])
    return list(found)


def check_out(out: Path, wanted: Sequence[str]) -> None:
    """Raise UserError where the page or an item would be written over what no run wrote, or the page would say of an
    item that is not measured now, and whose file is damaged, that it never was."""
    check_run_folder(out)
    for name in {item.table for item in ITEMS.values()}:
        check_folder(out / name)
    check_ours(out / "reproduce.json", page.KIND, ".md", ".html")
    for name in ITEMS:
        path = out / f"{name}.json"
        check_ours(path, KIND)
        if path.exists() and name not in wanted and not kept(out, name):
            raise UserError(f"{path} is damaged; remove it, or measure {name} again")


def key_of(item: Item, scale: Scale, job: Job) -> dict[str, Any]:
    """All that fixes an item beside the package itself; nothing for one that follows from shapes."""
    sizes = scale.model_dump(mode="json")
    measures = sizes.pop("measures")
    used = {"measures": {name: measures[name] for name in item.sizes}} if item.sizes else {}
    if not (item.texts or used):
        return {}
    dtype = str(pick_dtype(job.dtype, job.device)).removeprefix("torch.")
    facts = {"dtype": dtype, "device": job.device}
    if not item.texts:
        return facts | {"scale": {name: sizes[name] for name in PLAIN if item.base} | used}
    texts = {name: _digest(files) for name, files in _files(job).items()}
    return facts | {"scale": sizes | used, "trains": job.train_rows, **texts}


def _files(job: Job) -> dict[str, list[Path]]:
    return {"data": find_files(job.data) if job.data else [], "train": find_files(job.train) if job.train else []}


def _names(job: Job) -> dict[str, list[str]]:
    return {name: [file.name for file in files] for name, files in _files(job).items()}


def _digest(files: Iterable[Path]) -> str:
    """16 hex digits of the files' contents."""
    found = hashlib.sha256()
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def kept(out: Path, name: str) -> dict[str, Any]:
    """What a run wrote of an item; empty when it did not, or the file is damaged."""
    try:
        found = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        return found if found["kind"] == KIND and page.shown(name, found) else {}
    except (OSError, *BROKEN):
        return {}


def _write(out: Path, skipped: Mapping[str, str]) -> dict[str, Any]:
    result = page.result({name: kept(out, name) for name in ITEMS}, skipped)
    with atomic_file(out / "reproduce.json") as file:
        json.dump(result, file, indent=1)
    with atomic_file(out / "reproduce.md") as file:
        file.write(page.markdown(result))
    write_page({result["kind"]: [result]}, out / "reproduce.html", page.TITLE)
    return result
