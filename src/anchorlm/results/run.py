"""Train and measure the rows of a table one after the other, and write its page as far as it is known."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..convert.bases import load_base, load_base_config
from ..convert.cached import cache_folder
from ..core import UserError, atomic_file, check_folder, pick_dtype
from ..data import TokenStore, find_files
from ..eval.kept import check_ours, check_run_folder
from ..eval.parts import Parts
from ..eval.suite import Progress
from ..plan import ModelShape
from ..train import train
from . import page, summary
from .archive import Archive, Known, check_records, open_records, surroundings
from .checks import check_rows
from .measure import TEST, Cell, cells
from .plans import row_plans
from .rows import Built, Place, build_rows
from .table import Table

BF16 = 2  # bytes of an element: state bytes are stated for bfloat16 whatever the measurement ran in


@dataclass(frozen=True)
class Job:
    """What a table is made from and where it goes. rows: run only these; train_rows: whether untrained ones are
    trained; measure: whether anything is run at all, or the page written from what is kept; records: a folder with
    the figures of rows that were measured elsewhere; weights: whether a row is trained although its record would do.
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
    records: Path | None = None
    weights: bool = False


@dataclass(frozen=True)
class Run:
    """A job that was checked: rows by name, tokenised texts, the cells each row has and what is known of them."""

    job: Job
    table: Table
    shape: ModelShape
    built: dict[str, Built]
    stores: dict[str, TokenStore]
    training: TokenStore | None
    tokenizer: Any
    archive: Archive

    def known(self) -> dict[str, Known]:
        return {name: self.archive.known(row) for name, row in self.built.items()}

    def chosen(self) -> list[Built]:
        return [row for name, row in self.built.items() if not self.job.rows or name in self.job.rows]

    def todo(self) -> list[Built]:
        """The rows to be run. A record stands for its row, unless the row is named and a cell is missing, or its
        weights are needed: by the job, or by a row that starts from it."""
        known, going = self.known(), []
        for row in reversed(self.chosen() if self.job.measure else []):
            found = known[row.row.name]
            named = bool(found.missing) and row.row.name in self.job.rows
            starts = any(later.start is row and not later.ready for later in going)
            needed = not row.ready and (starts or self.job.weights)
            if (named or needed or not found.kept) and (row.ready or self.job.train_rows):
                going.append(row)
        return going[::-1]

    def write(self) -> dict[str, Any]:
        """Result and page, named as the table says, and records from what is kept; returns the first."""
        known = self.known()
        texts = {name: _facts(store) for name, store in self.stores.items()}
        result = summary.result(self.table, self.built, self.shape, known, texts, self.archive.environment)
        with atomic_file(self.job.out / f"{self.table.page}.json") as file:
            json.dump(result, file, indent=1)
        with atomic_file(self.job.out / f"{self.table.page}.md") as file:
            file.write(page.markdown(result))
        self.archive.write(self.job.out / "records", known)
        return result


def run_table(table: Table, job: Job, progress: Progress | None = None, say: Callable[[str], None] = print) -> dict:
    """Train and measure what is missing, row by row; returns what results.json holds.

    Rows are trained into out/rows/NAME; a finished run is left alone, a stopped one goes on. Each cell is kept once
    measured, and written to out/records/NAME.json with what the row is; a record stands for its row where the weights
    are not here. Raises UserError, before anything is written, for wrong rows, plans, recipes or texts, for a folder
    that holds another run and, unless nothing is measured, for a record of another row.
    """
    return fill(prepare(table, job), progress, say)


def fill(run: Run, progress: Progress | None = None, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train and measure what a prepared run lacks; returns what results.json holds."""
    todo = run.todo()
    for line in _remarks(run, todo) if run.job.measure else ():
        say(line)
    run.write()
    for row in todo:
        _go(row, run, progress, say)
    return run.write()


def _remarks(run: Run, todo: list[Built]) -> Iterator[str]:
    """A line of every chosen row whose record does not do, although its weights are not here."""
    known, going = run.known(), {row.row.name for row in todo}
    for row in run.chosen():
        name, found = row.row.name, known[row.row.name]
        here = "its record is of another dtype" if row.ready else "its weights are not here"
        again = "measured again" if row.ready else "trained again"
        lacks = f"its record lacks {page.reasons(found.missing)}, and {here}"
        why = lacks if found.missing else "its weights are needed"
        if found.kept and name in going:
            yield f"{name}: {why}; it is {again}"
        elif found.kept and found.missing:
            yield f"{name}: {why}; with --rows {name} it is {again}"


def _go(row: Built, run: Run, progress: Progress | None, say: Callable[[str], None]) -> None:
    if not row.ready:
        say(f"{row.row.name}: training")
        _train(row, run)
        run.write()
    _measure(row, run, progress, say)


def prepare(table: Table, job: Job) -> Run:
    """A job checked: nothing is written, and what must be trained can be. Raises UserError as `run_table` does."""
    check_run_folder(job.out)
    for name in ("rows", "records"):
        check_folder(job.out / name)
    check_ours(job.out / f"{table.page}.json", summary.KIND, ".md")
    for name in job.rows:
        table.row(name, "--rows")
    if not job.data:
        raise UserError("a table needs --data: the text on which every row is evaluated")
    for paths in filter(None, (job.data, job.validation, job.train)):
        find_files(paths)
    if job.records:
        check_records(job.records, [row.name for row in table.rows])
    config = load_base_config(table.base)
    shape = ModelShape.from_config(config, BF16)
    plans = row_plans(table, shape)
    base = load_base(table.base)
    dtype = str(pick_dtype(job.dtype, job.device)).removeprefix("torch.")
    built = build_rows(table, plans, Place(table.base, base.fingerprint, job.out / "rows", dtype, job.device))
    check_rows(built, config)
    texts = {TEST: job.data} | ({"validation": job.validation} if job.validation else {})
    stores = {name: _store(paths, base.tokenizer) for name, paths in texts.items()}
    training = _store(job.train, base.tokenizer) if job.train else None
    _check_folders(built, training)
    archive = _archive(job, built, cells(table, stores), training, shape.layers, surroundings(dtype, job.device))
    run = Run(job, table, shape, built, stores, training, base.tokenizer, archive)
    _check_untrained(run, [row for row in run.todo() if not row.ready])
    for cell in archive.cells:
        cell.check(base.tokenizer)
    return run


def _archive(
    job: Job, built: dict[str, Built], todo: list[Cell], training: TokenStore | None, layers: int, now: dict[str, Any]
) -> Archive:
    folders = [job.out / "records", *([job.records] if job.records else [])]
    records, others = open_records(folders, built, training, layers)
    if others and job.measure:
        name, (path, reason) = next(iter(others.items()))
        raise UserError(f"row {name!r}: {reason}; remove {path}, or leave it out with --page")
    return Archive(todo, Parts(job.out / "parts"), records, {name: why for name, (_, why) in others.items()}, now)


def _store(paths: Sequence[str], tokenizer: Any) -> TokenStore:
    return TokenStore.build(paths, tokenizer, cache_folder() / "tokens")


def _check_folders(built: dict[str, Built], training: TokenStore | None) -> None:
    """Folders hold the rows' own runs."""
    for row in built.values():
        try:
            row.check(training)
        except UserError as error:
            raise UserError(f"row {row.row.name!r}: {error}") from error


def _check_untrained(run: Run, untrained: list[Built]) -> None:
    """What must be trained can be."""
    if untrained and run.training is None:
        names = ", ".join(row.row.name for row in untrained)
        raise UserError(f"rows that are not trained: {names}; give --train TEXT")
    for row in untrained:
        if row.start and not row.start.ready and row.start not in untrained:
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


def _measure(row: Built, run: Run, progress: Progress | None, say: Callable[[str], None]) -> None:
    """Measure what is missing of a row; the model is opened only then."""
    live, archive = run.archive.live(row), run.archive
    assert live is not None
    done, digest = live.cells(archive.cells), live.digest
    todo = [cell for cell in archive.cells if cell.name not in done]
    opened = [row.open()[0]] if todo else []
    for number, cell in enumerate(todo, len(done) + 1):
        say(f"{row.row.name}: {cell.name} ({number} of {len(archive.cells)})")

        def compute(cell: Cell = cell) -> dict[str, Any]:
            found = cell.measure(row.row.name, opened[0], run.tokenizer, archive.parts, progress)
            return found | {"environment": archive.environment}

        archive.parts.path(cell.key_of(digest)).unlink(missing_ok=True)  # damaged, or it would not be measured
        archive.parts.run(cell.key_of(digest), compute)
        run.write()
    opened.clear()
    gc.collect()


def _facts(store: TokenStore) -> dict[str, Any]:
    return {"names": list(store.names[:20]), "documents": len(store), "hash": store.content_hash}
