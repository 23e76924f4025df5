"""`anchorlm analyze`: what a hybrid lost, where and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import options, show

What = Annotated[
    str, typer.Option("--what", help="comma-separated: knockout, similarity, readmaps, ablation, choosers, cost")
]
Texts = Annotated[list[str], typer.Option("--data", metavar="TEXT...", help="running text to measure on")]
Folder = Annotated[str | None, typer.Option("--out", "-o", metavar="RUN", help="also write WHAT.json to this folder")]
Layers = Annotated[
    str | None, typer.Option(metavar="7,18-20", help="knockout, choosers: layers to try; all by default")
]
Results = Annotated[str | None, typer.Option(metavar="results.json", help="cost: a table of `anchorlm results`")]


def analyze(
    ctx: typer.Context,
    source: options.Model,
    what: What = "",
    data: Texts = [],
    context: Annotated[int, typer.Option(min=2, help="tokens of a document")] = 1024,
    documents: Annotated[int, typer.Option(min=2, help="documents at most")] = 4,
    layers: Layers = None,
    results: Results = None,
    set_: options.Sets = [],
    out: Folder = None,
    seed: options.Seed = 0,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    base: options.BaseOverride = None,
    any_base: options.AnyBase = False,
    rules: options.Rules = [],
    json: options.Json = False,
) -> None:
    """Branches knocked out by layer and distance, read-outs compared, read maps, slots left out, cost."""
    options.use_rules(rules)
    flags = {"context": context, "documents": documents, "layers": layers, "results": results, "seed": seed}
    given = {name: value for name, value in flags.items() if options.was_given(ctx, name)}
    more = options.parse_sets(set_)
    from ..analyze.explain.run import check_request, needs_weights, run_analysis
    from ..convert.load import load
    from ..core import UserError

    for name in flags:
        if name in more:
            raise UserError(f"--set {name}: give it as --{name}")
    chosen = {**given, **more}
    names, target = check_request(source, what, data, base, out, **chosen)
    model, tokenizer = target, None
    if needs_weights(names):
        model, tokenizer = load(source, dtype, options.check_device(device), base=base, any_base=any_base)
    with show.Progress("", unit="done", left=True) as progress:
        found = run_analysis(
            model, tokenizer, names, data, name=source, out=out, progress=progress.named, **chosen
        )  # fmt: skip
    show.emit(found) if json else _tables(found, out)


def _tables(found: dict[str, dict[str, Any]], out: str | None) -> None:
    from ..analyze.explain.lines import TABLES

    for name, result in found.items():
        for title, rows in TABLES[name](result):
            show.table(rows, title, right=[key for key, value in rows[0].items() if isinstance(value, int)])
    if out:
        show.line(f"wrote {', '.join(f'{name}.json' for name in found)} to {out}; one page:  anchorlm report {out}")
