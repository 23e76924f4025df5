"""`anchorlm results`: the tables behind the claims, by one command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options, show

ABOUT = "which table: smollm2, sharing, titan, or a YAML file"
Name = Annotated[str, typer.Argument(metavar="core|retention|TABLE", help=ABOUT)]
Texts = Annotated[list[str], typer.Option("--data", metavar="TEXT...", help="evaluation text; of core: packaged")]
Folder = Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="where the figures and the page go")]
Base = Annotated[
    str | None, typer.Option(metavar="BASE", help="core: by default smollm2-135m-q4_1; a table names its own")
]
Adapter = Annotated[
    str | None, typer.Option("--adapter", metavar="DIR", help="core: the row `anchor`; packaged by default")
]
Row = Annotated[list[str], typer.Option("--row", metavar="NAME=DIR", help="core: a further row; repeatable")]
Window = Annotated[int | None, typer.Option(min=1, help="core: window of the rows swa and anchor-f, 128")]
Context = Annotated[int | None, typer.Option(min=2, help="tokens of one perplexity document; core: 2048")]
Lengths = Annotated[
    list[str], typer.Option("--lengths", metavar="N...", help="tokens at which core measures speed and a table needles")
]
Limit = Annotated[int | None, typer.Option(min=1, help="perplexity documents at most")]
Peaks = Annotated[bool, typer.Option("--peaks/--no-peaks", help="core: measure peak memory in separate processes")]
Train = Annotated[list[str], typer.Option("--train", metavar="TEXT...", help="table: training text")]
Validation = Annotated[
    list[str], typer.Option("--validation", metavar="TEXT...", help="table: a second evaluation text")
]
Rows = Annotated[
    list[str], typer.Option("--rows", metavar="NAME...", help="table: run these alone; the page shows all")
]
Needles = Annotated[int | None, typer.Option(min=1, help="table: needles of each length and wording")]
NoTrain = Annotated[bool, typer.Option("--no-train", help="table: measure what is trained already")]
Page = Annotated[bool, typer.Option("--page", help="table: run nothing, write the page from what is kept")]
Records = Annotated[
    str | None, typer.Option("--records", metavar="DIR", help="table: figures of rows that were measured elsewhere")
]

CORE_ONLY = ("adapter", "row", "window", "peaks", "seed")
TABLE_ONLY = ("train", "validation", "rows", "needles", "no_train", "page", "records")


def results(
    ctx: typer.Context,
    name: Name = "core",
    data: Texts = [],
    out: Folder = "runs/results",
    base: Base = None,
    adapter: Adapter = None,
    row: Row = [],
    window: Window = None,
    context: Context = None,
    lengths: Lengths = [],
    limit: Limit = None,
    peaks: Peaks = True,
    train: Train = [],
    validation: Validation = [],
    rows: Rows = [],
    needles: Needles = None,
    no_train: NoTrain = False,
    page: Page = False,
    records: Records = None,
    seed: options.Seed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    json: options.Json = False,
) -> None:
    """core: a base, its window-only form, Anchor-F and the trained adapter side by side.

    retention: what an untrained memory of the base still answers 16 chunks later, before and after calibration.

    TABLE (smollm2, sharing, titan or a YAML file): every row trained and measured, or taken from where it was stopped.
    """
    shared = {"dtype": dtype, "device": options.check_device(device)}
    counts = options.whole_numbers(lengths, "--lengths", "tokens, such as 1024 2048")
    if name in ("core", "retention"):
        _refuse(ctx, TABLE_ONLY, name)
        given = {"window": window, "context": context, "lengths": counts or None, "limit": limit, "base": base}
        chosen = {key: value for key, value in given.items() if value is not None}
        _core(name, data, out, adapter, row, json, seed=seed, peaks=peaks, **chosen, **shared)
        return
    _refuse(ctx, CORE_ONLY, f"table {name}")
    from ..results import Job, load_table, run_table

    changes = {"base": base, "context": context, "lengths": counts or None, "limit": limit, "needles": needles}
    alone = tuple(options.listed(rows, "--rows"))
    table = load_table(name, **changes)
    job = Job(
        tuple(data), Path(out), tuple(validation), tuple(train), alone, not no_train, not page,
        records=Path(records) if records else None, **shared,
    )  # fmt: skip
    with show.Progress("", unit="done") as progress:
        result = run_table(table, job, progress.named, show.note)
    show.emit(result) if json else show.line((Path(out) / f"{table.page}.md").read_text(encoding="utf-8"))


def _core(name: str, data: list[str], out: str, adapter: str | None, row: list[str], json: bool, **chosen: Any) -> None:
    from ..quickstart import packaged_text
    from ..results import Core, core, keep_retention, markdown
    from ..results.core_table import check_core

    settings = Core(
        data=tuple(data) or (str(packaged_text("held_out.txt")),),
        adapter=adapter or _packaged(),
        extra=dict(_named(text) for text in row),
        **{"base": "smollm2-135m-q4_1"} | chosen,
    )
    if name == "retention":
        found = keep_retention(settings, out)
        rows = [{n: f"{v:.3f}" if isinstance(v, float) else v for n, v in row.items()} for row in found["rows"]]
        show.emit(found) if json else show.table(rows, "recall of written pairs: cosine of centred answer and value")
        return
    check_core(out)
    lengths = ", ".join(f"{n:,}" for n in settings.lengths)
    show.note(f"measuring {settings.base} and its hybrids at {lengths} tokens, into {out}; "
              "it may take an hour, and goes on where it was stopped")  # fmt: skip
    with show.Progress("", unit="done") as progress:
        result = core(settings, out, progress.named)
    show.emit(result) if json else show.line(markdown(result))


def _refuse(ctx: typer.Context, names: Sequence[str], what: str) -> None:
    """Raise UserError for a flag that `what` would ignore."""
    from ..core import UserError

    for name in names:
        if options.was_given(ctx, name):
            raise UserError(f"--{name.replace('_', '-')} has no meaning for {what}")


def _named(text: str) -> tuple[str, str]:
    from ..core import UserError

    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise UserError(f"--row {text!r} must look like name=DIR")
    return name, folder


def _packaged() -> str | None:
    from ..quickstart import packaged_adapter

    folder = packaged_adapter("smollm2-135m-anchor")
    return None if folder is None else str(folder)
