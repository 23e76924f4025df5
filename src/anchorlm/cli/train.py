"""`anchorlm train`: a recipe applied to a converted folder."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options, show


def train(
    source: options.Model,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="DIR", help="the run's folder, which also holds the model")
    ] = "",
    data: Annotated[
        list[str], typer.Option("--data", metavar="TEXT...", help="files or folders: .txt .jsonl .parquet .gz")
    ] = [],
    recipe: Annotated[str, typer.Option("--recipe", help="a packaged recipe or a YAML file")] = "anchor",
    set_: options.Sets = [],
    mix: Annotated[
        list[str], typer.Option("--mix", metavar="KIND=SHARE", help="share of generated rows: recall=0.2, needle=0.1")
    ] = [],
    eval_data: Annotated[list[str], typer.Option("--eval-data", metavar="TEXT...", help="held-out text")] = [],
    resume: Annotated[str, typer.Option("--resume", help="auto, never, or one checkpoint folder")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print what trains and the memory needed; change nothing")
    ] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    base: options.BaseOverride = None,
    any_base: options.AnyBase = False,
    rules: options.Rules = [],
    json: options.Json = False,
) -> None:
    """Train memory, gates and read maps, then LoRA, as the recipe says. The same command goes on after a stop."""
    options.use_rules(rules)
    from ..core import UserError, check_folder, seed_all
    from ..settings import load_recipe

    chosen = load_recipe(recipe, [*set_, *options.mix_overrides(mix)])
    if not dry_run and not (data and out):
        raise UserError("train needs --data and --out, unless --dry-run")
    check_folder(out or None)
    from rich.console import Console

    from ..convert.load import load
    from ..data import find_files
    from ..train import train as run

    for paths in (data, eval_data):
        find_files(paths) if paths else None
    seed_all(chosen.seed)
    device = options.own_device(options.check_device(device))
    model, tokenizer = load(source, dtype, device, base=base, any_base=any_base)
    result = run(
        model, tokenizer, chosen, data, out, resume=resume, dry_run=dry_run, eval_data=eval_data or None,
        console=Console(stderr=True) if json else Console(file=show.stdout()),
    )  # fmt: skip
    if json and options.first_process():
        show.emit(
            {"out": out or None, "dry_run": dry_run, "recipe": chosen.model_dump(mode="json"), **result.to_dict()}
        )
