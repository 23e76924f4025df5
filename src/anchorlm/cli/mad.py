"""`anchorlm mad`: small models of every plan, trained from scratch on the six MAD tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options, show

Models = Annotated[
    list[str], typer.Option("--models", metavar="NAME...", help="of the table, such as transformer,anchor-f; all")
]
Tasks = Annotated[list[str], typer.Option("--tasks", metavar="NAME...", help="of the table; all")]
TableName = Annotated[str, typer.Option("--table", metavar="TABLE", help="mad, or a YAML file like it")]
Seeds = Annotated[int | None, typer.Option(min=1, help="how many: seeds 0, 1, ...; the table's by default")]
Folder = Annotated[str, typer.Option("--out", "-o", metavar="RUN", help="where mad.json, mad.md and mad.html go")]


def mad(
    models: Models = [],
    tasks: Tasks = [],
    table: TableName = "mad",
    seeds: Seeds = None,
    set_: options.Sets = [],
    out: Folder = "runs/mad",
    device: options.Device = "cpu",
    json: options.Json = False,
) -> None:
    """Train small models of every plan from scratch on the six MAD tasks, and put them side by side.

    Each task, model and seed is kept once it is done; the same command goes on after a stop.
    """
    from ..mad import load_mad, run_mad

    chosen = load_mad(table, set_, options.listed(models, "--models"), options.listed(tasks, "--tasks"), seeds)
    with show.Progress("mad", unit="trainings", left=True) as progress:
        result = run_mad(chosen, out, progress, show.note, options.check_device(device))
    show.emit(result) if json else show.line((Path(out) / "mad.md").read_text(encoding="utf-8"))
