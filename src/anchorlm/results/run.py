"""Train and measure the rows of a table one after the other, and write its page as far as it is known."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..convert.bases import load_base, load_base_config
from ..convert.cached import cache_folder
from ..core import UserError, atomic_file, pick_dtype
from ..data import TokenStore, find_files
from ..environment import environment
from ..eval.parts import Parts
from ..eval.runner import Progress
from ..plan import ModelShape
from ..train import train
from . import page
from .measure import TEST, Cell, cells, kept
from .plans import row_plans
from .rows import Built, Place, build_rows
from .table import Table

BF16 = 2  # bytes of an element: state bytes are stated for bfloat16 whatever the measurement ran in


@dataclass(frozen=True)
class Job:
    """What a table is made from and where it goes. rows: run only these; train_rows: whether untrained ones are
    trained; measure: whether anything is run at all, or the page written from what is kept.
    """

    data: tuple[str, ...]
    out: Path
    validation: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    train_rows: bool = True
    measure: bool = True
    dtype: str = "auto"
    device: str = "cpu"


@dataclass(frozen=True)
class Run:
    """A job that was checked: rows by name, tokenised texts, and the cells each row has."""

    job: Job
    table: Table
    shape: ModelShape
    built: dict[str, Built]
    stores: dict[str, TokenStore]
    training: TokenStore | None
    cells: list[Cell]
    tokenizer: Any
    dtype: str
    parts: Parts

    def chosen(self) -> list[Built]:
        return [row for name, row in self.built.items() if not self.job.rows or name in self.job.rows]

    def write(self) -> dict[str, Any]:
        """results.json and results.md from what is kept; returns the first."""
        found = {name: kept(row, self.cells, self.parts) for name, row in self.built.items()}
        texts = {name: _facts(store) for name, store in self.stores.items()}
        result = page.result(self.table, self.built, self.shape, found, texts)
        result |= {"environment": environment(), "dtype": self.dtype}
        with atomic_file(self.job.out / "results.json") as file:
            json.dump(result, file, indent=1)
        with atomic_file(self.job.out / "results.md") as file:
            file.write(page.markdown(result))
        return result


def run_table(table: Table, job: Job, progress: Progress | None = None, say: Callable[[str], None] = print) -> dict:
    """Train and measure what is missing, row by row; returns what results.json holds.

    Rows are trained into out/rows/NAME; a finished run is left alone, a stopped one goes on. Each cell is kept once
    measured. Raises UserError, before anything is written, for wrong rows, plans or texts and for a folder that
    holds another run.
    """
    return fill(prepare(table, job), progress, say)


def fill(run: Run, progress: Progress | None = None, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train and measure what a prepared run lacks; returns what results.json holds."""
    job, result = run.job, run.write()
    for row in run.chosen() if job.measure else ():
        if not row.ready and job.train_rows:
            say(f"{row.row.name}: training")
            _train(row, run)
            result = run.write()
        if row.ready:
            result = _measure(row, run, progress, say)
    return result


def prepare(table: Table, job: Job) -> Run:
    """A job checked: nothing is written, and what must be trained can be. Raises UserError as `run_table` does."""
    for name in job.rows:
        table.row(name, "--rows")
    if not job.data:
        raise UserError("a table needs --data: the text on which every row is evaluated")
    for paths in filter(None, (job.data, job.validation, job.train)):
        find_files(paths)
    shape = ModelShape.from_config(load_base_config(table.base), BF16)
    plans = row_plans(table, shape)
    base = load_base(table.base)
    dtype = str(pick_dtype(job.dtype, job.device)).removeprefix("torch.")
    built = build_rows(table, plans, Place(table.base, base.fingerprint, job.out / "rows", dtype, job.device))
    texts = {TEST: job.data} | ({"validation": job.validation} if job.validation else {})
    stores = {name: _store(paths, base.tokenizer) for name, paths in texts.items()}
    training = _store(job.train, base.tokenizer) if job.train else None
    todo, parts = cells(table, stores), Parts(job.out / "parts")
    run = Run(job, table, shape, built, stores, training, todo, base.tokenizer, dtype, parts)
    _check_rows(run)
    for cell in run.cells:
        cell.check(base.tokenizer)
    return run


def _store(paths: Sequence[str], tokenizer: Any) -> TokenStore:
    return TokenStore.build(paths, tokenizer, cache_folder() / "tokens")


def _check_rows(run: Run) -> None:
    """Folders hold the rows' own runs; what must be trained can be."""
    for row in run.built.values():
        try:
            row.check(run.training)
        except UserError as error:
            raise UserError(f"row {row.row.name!r}: {error}") from error
    if not (run.job.measure and run.job.train_rows):
        return
    chosen = run.chosen()
    untrained = [row for row in chosen if not row.ready]
    if untrained and run.training is None:
        names = ", ".join(row.row.name for row in untrained)
        raise UserError(f"rows that are not trained: {names}; give --train TEXT")
    for row in untrained:
        if row.start and not row.start.ready and row.start not in chosen:
            start = row.start.row.name
            raise UserError(
                f"row {row.row.name!r} starts from {start!r}, which is not trained; add {start!r} to --rows"
            )


def _train(row: Built, run: Run) -> None:
    assert row.recipe is not None and run.training is not None
    row.check(run.training)  # again: the row it starts from may have been trained just now
    model, tokenizer = row.open_start()
    watched = run.stores[TEST] if row.recipe.eval_every else None
    train(model, tokenizer, row.recipe, run.training, row.folder, eval_data=watched, console=Console(stderr=True))
    del model
    gc.collect()  # wrapped layers refer to each other, and the next row needs the room


def _measure(row: Built, run: Run, progress: Progress | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure what is missing of a row; the model is opened only then."""
    done = kept(row, run.cells, run.parts)
    todo = [cell for cell in run.cells if cell.name not in done]
    opened, digest = [row.open()[0]] if todo else [], row.digest()
    for number, cell in enumerate(todo, len(done) + 1):
        say(f"{row.row.name}: {cell.name} ({number} of {len(run.cells)})")

        def compute(cell: Cell = cell) -> dict[str, Any]:
            return cell.measure(row.row.name, opened[0], run.tokenizer, run.parts, progress)

        run.parts.run(cell.key_of(digest), compute)
        run.write()
    opened.clear()
    gc.collect()
    return run.write()


def _facts(store: TokenStore) -> dict[str, Any]:
    return {"names": list(store.names[:20]), "documents": len(store), "hash": store.content_hash}
