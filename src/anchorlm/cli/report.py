"""`anchorlm report`: the results of runs as one self-contained page."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options, show

Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="folders that eval, analyze or quickstart wrote")]
Page = Annotated[str, typer.Option("--out", "-o", metavar="PAGE.html", help="the page to write")]


def report(
    runs: Runs,
    out: Page = "report.html",
    title: Annotated[str, typer.Option(help="heading of the page")] = "anchorlm",
    json: options.Json = False,
) -> None:
    """One page with every table and figure of these runs; it needs no network."""
    from ..report import write_report

    page = write_report(runs, out, title)
    show.emit({"page": str(page)}) if json else show.line(f"wrote {page}")
