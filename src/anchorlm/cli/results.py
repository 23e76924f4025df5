"""`anchorlm results`: the table behind the claims, by one command."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options, show

Name = Annotated[str, typer.Argument(metavar="core|retention", help="which table")]
Texts = Annotated[list[str], typer.Option("--data", metavar="TEXT...", help="text for perplexity; packaged by default")]
Folder = Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="where core.json and core.md go")]
Adapter = Annotated[str | None, typer.Option("--adapter", metavar="DIR", help="the row `anchor`; packaged by default")]
Rows = Annotated[list[str], typer.Option("--row", metavar="NAME=DIR", help="a further row; repeatable")]
Lengths = Annotated[list[int], typer.Option("--lengths", metavar="N...", help="tokens at which speed is measured")]


def results(
    name: Name = "core",
    data: Texts = [],
    out: Folder = "runs/results",
    base: Annotated[str, typer.Option(metavar="BASE")] = "smollm2-135m-q4_1",
    adapter: Adapter = None,
    row: Rows = [],
    window: Annotated[int, typer.Option(min=1, help="window of the rows swa and anchor-f")] = 128,
    context: Annotated[int, typer.Option(min=2, help="tokens of one perplexity document")] = 2048,
    lengths: Lengths = [1024, 4096, 16384],
    limit: Annotated[int | None, typer.Option(min=1, help="perplexity documents at most")] = None,
    peaks: Annotated[bool, typer.Option("--peaks/--no-peaks", help="measure peak memory in separate processes")] = True,
    seed: options.Seed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    json: options.Json = False,
) -> None:
    """core: a base, its window-only form, Anchor-F and the trained adapter side by side.

    retention: what an untrained memory of the base still answers 16 chunks later, before and after calibration.
    """
    from ..core import UserError, suggest
    from ..quickstart import packaged_text
    from ..results import Core, core, keep_retention, markdown

    if name not in ("core", "retention"):
        raise UserError(f"table {name!r} is unknown; {suggest(name, ['core', 'retention'])}")
    settings = Core(
        data=tuple(data) or (str(packaged_text("held_out.txt")),),
        base=base,
        adapter=adapter or _packaged(),
        extra=dict(_named(text) for text in row),
        window=window,
        context=context,
        lengths=tuple(lengths),
        limit=limit,
        seed=seed,
        dtype=dtype,
        device=options.check_device(device),
        peaks=peaks,
    )
    if name == "retention":
        found = keep_retention(settings, out)
        rows = [{n: f"{v:.3f}" if isinstance(v, float) else v for n, v in row.items()} for row in found["rows"]]
        show.emit(found) if json else show.table(rows, "recall of written pairs: cosine of centred answer and value")
        return
    show.note(f"measuring {base} and its hybrids at {', '.join(f'{n:,}' for n in lengths)} tokens, into {out}; "
              "it may take an hour, and goes on where it was stopped")  # fmt: skip
    with show.Progress("", unit="done") as progress:
        result = core(settings, out, progress.named)
    show.emit(result) if json else show.line(markdown(result))


def _named(text: str) -> tuple[str, str]:
    from ..core import UserError

    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise UserError(f"--row {text!r} must look like name=DIR")
    return name, folder


def _packaged() -> str | None:
    from ..quickstart import packaged_adapter

    folder = packaged_adapter()
    return None if folder is None else str(folder)
