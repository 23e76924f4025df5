"""`anchorlm reproduce`: the paper's tables and figures, measured again, beside what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import options, show

Names = Annotated[
    list[str] | None, typer.Argument(metavar="ITEM...", help="table1 to table5, figure1 to figure11, or all")
]
Size = Annotated[
    str, typer.Option("--scale", metavar="small|full|FILE", help="sizes and steps: packaged, or a YAML file")
]
Train = Annotated[list[str], typer.Option("--train", metavar="TEXT...", help="training text")]
Texts = Annotated[list[str], typer.Option("--data", metavar="TEXT...", help="evaluation text")]
Sets = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="a recipe key of every trained row, such as stage1.steps=400"),
]
Folder = Annotated[str, typer.Option("--out", "-o", metavar="RUN", help="where rows, figures and the page go")]
Base = Annotated[str | None, typer.Option("--base", metavar="BASE", help="another model than the scale's")]
Context = Annotated[int | None, typer.Option(min=2, help="tokens of an evaluation piece")]
Limit = Annotated[int | None, typer.Option(min=1, help="evaluation pieces at most")]
NoTrain = Annotated[bool, typer.Option("--no-train", help="measure what is trained already")]
Dry = Annotated[bool, typer.Option("--dry-run", help="list what is trained, and about how long; change nothing")]
Page = Annotated[bool, typer.Option("--page", help="run nothing, write the page from what is kept")]


def reproduce(
    names: Names = None,
    scale: Size = "small",
    data: Texts = [],
    train: Train = [],
    set_: Sets = [],
    out: Folder = "runs/reproduce",
    base: Base = None,
    context: Context = None,
    limit: Limit = None,
    no_train: NoTrain = False,
    dry_run: Dry = False,
    page: Page = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    json: options.Json = False,
) -> None:
    """Measure tables and figures of the paper on a model, and say of each claim whether it holds there.

    Rows are trained once and kept; the same command goes on after a stop. Items of one run share their rows.
    """
    sets = options.parse_sets(set_)
    from ..convert.bases import load_base_config
    from ..core import UserError
    from ..reproduce import load_scale, outline
    from ..reproduce import reproduce as measure
    from ..reproduce.items import ITEMS, chosen
    from ..reproduce.scale import fixed_rows
    from ..results import Job
    from ..settings import flatten

    wanted = options.listed(names or [], "item")
    if not (page or dry_run):
        readers = [name for name in chosen(wanted) if ITEMS[name].texts]
        if readers and not data:
            raise UserError(f"{readers[0]} needs --data: the text on which every row is evaluated")
    if base is not None:
        load_base_config(base)
    keys = flatten(sets)
    sizes = load_scale(scale, keys, base=base, context=context, limit=limit)
    for key in keys:
        if own := fixed_rows(key):
            show.note(f"--set {key}: {', '.join(own)} keep their own value")
    job = Job(
        tuple(data), Path(out), train=tuple(train), train_rows=not no_train, measure=not page, dtype=dtype,
        device=options.check_device(device),
    )  # fmt: skip
    if dry_run:
        found = outline(wanted, sizes, job)
        return show.emit(found) if json else _outline(found)
    with show.Progress("", unit="done") as progress:
        result = measure(wanted, sizes, job, progress.named, show.note)
    show.emit(result) if json else show.line((Path(out) / "reproduce.md").read_text(encoding="utf-8"))


def _outline(found: dict[str, Any]) -> None:
    if found["rows"]:
        show.table(found["rows"], "rows that are trained, each once", right=["steps", "tokens"])
    lines = [
        {"item": item["item"], "what": item["title"],
         **{part: "kept" if item["kept"] else show.span(item[part]) for part in ("training", "measuring")}}
        for item in found["items"]
    ]  # fmt: skip
    show.table(lines, "about how long, what items share at the first", right=["training", "measuring"])
    if found["mad"]:
        show.line(
            f"table4: {found['mad']['trainings']} small models of at most {found['mad']['steps']} steps, from scratch"
        )
    tokens = f"{found['tokens']:,} tokens to train on"
    show.line(f"in all about {show.span(found['seconds'])} at this machine's present speed, {tokens}")
