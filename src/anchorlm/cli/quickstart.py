"""`anchorlm quickstart`: the main job, on a packaged real model."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options, show


def quickstart(
    out: Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="results and report.html")] = "runs/quickstart",
    adapter: Annotated[
        str | None, typer.Option(metavar="DIR", help="another trained folder than the packaged one")
    ] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """See on a real model what is kept and what it costs, in under three minutes."""
    from ..quickstart import Settings
    from ..quickstart import quickstart as run

    result = run(Settings(out=out, adapter=adapter, seed=seed), say=show.note if json else show.line)
    if json:
        show.emit(result)
