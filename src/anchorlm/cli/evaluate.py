"""`anchorlm eval`: what a model keeps, beside what it was made from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import options, show

Suites = Annotated[
    str,
    typer.Option("--suite", help="comma-separated: ppl, niah, ruler, recall, ar, commonsense, mmlu, mmlu-cloze"),
]
Texts = Annotated[list[str], typer.Option("--data", metavar="TEXT...", help="text for perplexity and haystacks")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="documents, needles, samples or questions, at most")]
Versus = Annotated[
    list[str],
    typer.Option("--vs", metavar="BASE|teacher|window", help="measure this too; window: the same model without memory"),
]
WINDOW, TEACHER = "window", "teacher"
Folder = Annotated[str | None, typer.Option("--out", "-o", metavar="DIR", help="also write SUITE.json to this folder")]
Page = Annotated[str | None, typer.Option("--report", metavar="PAGE.html", help="also write one page with figures")]


def evaluate(
    source: options.Model,
    data: Texts = [],
    suite: Suites = "ppl",
    context: Annotated[int, typer.Option(min=1, help="tokens of context")] = 2048,
    limit: Limit = None,
    versus: Versus = [],
    set_: options.Sets = [],
    out: Folder = None,
    report: Page = None,
    seed: options.Seed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "cpu",
    base: options.BaseOverride = None,
    any_base: options.AnyBase = False,
    rules: options.Rules = [],
    json: options.Json = False,
) -> None:
    """Perplexity, retrieval, recall and questions, with sample sizes and intervals."""
    options.use_rules(rules)
    chosen = options.parse_sets(set_)
    from ..convert.load import load
    from ..core import UserError, check_page_apart
    from ..data import find_files
    from ..eval import EvalOptions, check_names, check_out, check_suites, open_source, prepare, run_prepared
    from ..eval.kept import check_run_folder

    for name in ("context", "limit", "seed", "own"):
        if name in chosen:
            raise UserError(f"--set {name}: give it as --{name}")
    suites = check_suites(suite)
    if report is not None:
        from ..report.html import check_page

        check_page(report)
        check_page_apart(report, out)
    check_run_folder(out)
    check_names([source, *versus])
    asked = EvalOptions.of(context=context, limit=limit, seed=seed, **chosen)
    files = find_files(data) if data else []
    device = options.check_device(device)
    found = open_source(source, base)
    for name in versus:
        if name not in (WINDOW, TEACHER, found.base):
            open_source(name)
    prepared = prepare(suites, found.tokenizer, asked.seen_through(found.window), files, positions=found.positions)
    check_out(prepared, dict.fromkeys([source, *versus]), out)
    for note in prepared.notes:
        show.note(note)
    model, _ = load(source, dtype, device, base=base, any_base=any_base)
    others = {name: _other(name, model, dtype, device) for name in versus}
    with show.Progress("", unit="done", left=True) as progress:
        results = run_prepared(
            prepared, model, versus=others, name=source, out=out, progress=progress.named
        )  # fmt: skip
    show.emit(results) if json else _tables(results)
    if report:
        _page(results, report, source)


def _other(name: str, model: Any, dtype: str, device: str) -> Any:
    """A control: the model's own base costs no second copy of the weights."""
    from ..convert import views
    from ..convert.load import load

    if name == WINDOW:
        return views.without_memory(model)
    if name in (TEACHER, model.config.base):
        return views.teacher(model)
    return load(name, dtype, device)[0]


def _page(results: dict[str, dict[str, Any]], path: str, source: str) -> None:
    from ..report.html import write_page

    show.note(f"wrote {write_page({'eval': list(results.values())}, path, f'Evaluation of {source}')}")


def _tables(results: dict[str, dict[str, Any]]) -> None:
    from ..eval import details, lines, pairs, table, title

    for result in results.values():
        show.line(title(result))
        for text in [*lines(*table(result)), *pairs(result), *details(result)]:
            show.line(f"  {text}".rstrip())
