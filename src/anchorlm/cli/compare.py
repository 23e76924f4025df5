"""`anchorlm compare`: methods side by side on one base, text and budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options, show

if TYPE_CHECKING:
    from ..compare import Contest

Methods = Annotated[
    list[str],
    typer.Option("--methods", metavar="NAME...", help="presets, such as lolcats,anchor; by default all known"),
]
Tokens = Annotated[str, typer.Option(metavar="1M|300K|N", help="training tokens of each row")]
Texts = Annotated[
    list[str],
    typer.Option("--data", metavar="TEXT...", help="evaluation text; without --train also trained on, but for a tenth"),
]
Train = Annotated[list[str], typer.Option("--train", metavar="TEXT...", help="training text")]
Validation = Annotated[list[str], typer.Option("--validation", metavar="TEXT...", help="a second evaluation text")]
Folder = Annotated[str, typer.Option("--out", "-o", metavar="RUN", help="where rows, figures and the page go")]
Layers = Annotated[
    str | None, typer.Option(metavar="7,18-20|PLAN.yaml", help="measured layers, or a plan of `anchorlm place`")
]
Seeds = Annotated[list[str], typer.Option("--seeds", metavar="N...", help="each trained row once with each seed")]
Sets = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="a recipe key of every trained row, such as data.length=512"),
]
Mix = Annotated[list[str], typer.Option("--mix", metavar="KIND=SHARE", help="generated rows in the common recipe")]
Rows = Annotated[list[str], typer.Option("--rows", metavar="NAME...", help="run these alone; the page shows all")]
Lengths = Annotated[list[str], typer.Option("--lengths", metavar="N...", help="tokens of needle prompts")]
Records = Annotated[
    str | None, typer.Option("--records", metavar="DIR", help="figures of rows that were measured elsewhere")
]


def compare(
    base: options.BaseName,
    methods: Methods = [],
    tokens: Tokens = "1M",
    data: Texts = [],
    train: Train = [],
    validation: Validation = [],
    out: Folder = "runs/compare",
    layers: Layers = None,
    seeds: Seeds = [],
    set_: Sets = [],
    mix: Mix = [],
    window: Annotated[int | None, typer.Option(min=1, help="of every row; 128")] = None,
    context: Annotated[int | None, typer.Option(min=2, help="tokens of an evaluation piece; 2048")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="pieces of each text at most; 20")] = None,
    lengths: Lengths = [],
    needles: Annotated[int | None, typer.Option(min=1, help="of each length; 20")] = None,
    recall: Annotated[int | None, typer.Option(min=0, help="texts with facts asked for at their end; 20")] = None,
    speed: Annotated[int | None, typer.Option(min=0, help="tokens read to measure speed, 0: none; 1024")] = None,
    rows: Rows = [],
    no_train: Annotated[bool, typer.Option("--no-train", help="measure what is trained already")] = False,
    page: Annotated[bool, typer.Option("--page", help="run nothing, write the page from what is kept")] = False,
    records: Records = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    json: options.Json = False,
) -> None:
    """Train and measure methods on one base with the same text, tokens, seeds and controls, row by row.

    Each method has a row with its own recipe, one with the common one, and one in measured layers. Rows are kept: the
    same command goes on after a stop.
    """
    from ..compare import Contest, apart, check_methods, contest_table, parse_tokens
    from ..results import Job, run_table

    chosen, budget = check_methods(options.listed(methods, "--methods")), parse_tokens(tokens)
    contest = Contest(
        base, chosen, budget, options.whole_numbers(seeds, "--seeds", "seeds, such as 0,1", 0, 10**18 - 1) or (0,),
        sets=_flat(set_), mix=_shares(mix),
    )  # fmt: skip
    found = options.whole_numbers(lengths, "--lengths", "tokens, such as 1024 2048")
    alone = tuple(options.listed(rows, "--rows"))
    held = (tuple(train), tuple(data)) if train or not data else apart(data)
    changes = {"window": window, "context": context, "limit": limit, "lengths": found or None, "needles": needles}
    contest = _placed(contest, layers)
    table = contest_table(contest, **changes, recall=recall, speed=speed)
    if not contest.layers:
        show.note(f"no measured layers are known of {base}, so no row has them; give --layers")
    job = Job(
        held[1], Path(out), tuple(validation), held[0], alone, not no_train, not page, dtype,
        options.check_device(device), Path(records) if records else None,
    )  # fmt: skip
    if held[0] and not train:
        show.note(
            f"evaluated on {', '.join(Path(file).name for file in held[1])}; trained on {len(held[0])} other files"
        )
    with show.Progress("", unit="done") as progress:
        result = run_table(table, job, progress.named, show.note)
    show.emit(result) if json else show.line((Path(out) / f"{table.page}.md").read_text(encoding="utf-8"))


def _placed(contest: Contest, layers: str | None) -> Contest:
    """The contest with the measured layers that are named, or known of its base."""
    from dataclasses import replace

    from ..compare import known_layers, named_layers
    from ..convert.bases import load_base_config
    from ..plan import ModelShape

    shape = ModelShape.from_config(load_base_config(contest.base))
    found = named_layers(layers, shape) if layers is not None else known_layers(contest.base)
    return replace(contest, layers=found)


def _flat(sets: list[str]) -> dict[str, Any]:
    from ..settings import flatten

    return flatten(options.parse_sets(sets))


def _shares(mix: list[str]) -> dict[str, Any]:
    found = options.parse_sets(options.mix_overrides(mix))
    return found["data"]["mix"] if found else {}
