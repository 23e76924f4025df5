"""`anchorlm place`: which layers need memory, measured, and the plan that fits a budget of bytes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import options, show

Texts = Annotated[list[str], typer.Option("--data", metavar="TEXT...", help="text to measure on; not your test set")]
PlanFile = Annotated[str, typer.Option("--out", "-o", metavar="PLAN.yaml", help="the plan; every trial goes beside it")]
Page = Annotated[str | None, typer.Option("--report", metavar="PAGE.html", help="also write one page with figures")]
Kept = Annotated[
    int | None, typer.Option(min=1, help="tokens a KV head of the oracle or a kept slot; without it slots' are divided")
]
Steps = Annotated[int | None, typer.Option(min=0, help="layers that the search gives back at most; 0: no search")]
Keep = Annotated[
    str, typer.Option("--keep", help="full: attention kept in layers; heads: in KV heads; slots; or heads,slots")
]
Knockout = Annotated[
    str | None, typer.Option("--knockout", metavar="FILE", help="of analyze: place fast weights where they are missed")
]


def place(
    base: options.BaseName,
    data: Texts = [],
    out: PlanFile = "plan.yaml",
    report: Page = None,
    window: Annotated[int, typer.Option(min=1, help="tokens that a windowed layer sees")] = 128,
    sinks: Annotated[int, typer.Option(min=0, help="first tokens that stay visible")] = 4,
    budget: Annotated[str, typer.Option(help="bytes beside the windows, such as 2MB or 590KB")] = "2MB",
    context: Annotated[int, typer.Option(min=2, help="tokens of a document, and of a full layer")] = 1024,
    documents: Annotated[int, typer.Option(min=2, help="pieces of text, and needles, at most")] = 4,
    keep: Keep = "full",
    rule: Annotated[str, typer.Option(help="rule of the slots")] = "swiglu-ttt",
    kept: Kept = None,
    layers: Annotated[str | None, typer.Option(metavar="7,18-20", help="layers to try; all by default")] = None,
    steps: Steps = None,
    needles: Annotated[bool, typer.Option("--needles/--no-needles", help="also measure hidden facts")] = True,
    heads: Annotated[bool, typer.Option("--heads", help="also measure single KV heads, as --keep heads does")] = False,
    oracle: Annotated[bool, typer.Option("--oracle", help="also score what a few exact tokens would win back")] = False,
    knockout: Knockout = None,
    seed: options.Seed = 0,
    dtype: options.Dtype = "float32",
    device: options.Device = "cpu",
    json: options.Json = False,
) -> None:
    """Measure which layers of a model need more than a window, and write the plan that fits a budget."""
    from ..analyze.place import place as measure
    from ..core import UserError

    if not data:
        raise UserError("place needs --data: a text file or a folder of them")
    with show.Progress("", unit="trials", left=True) as progress:
        found = measure(
            base, data, window, budget, out=out, report=report, dtype=dtype, device=options.check_device(device),
            progress=progress.named, sinks=sinks, context=context, documents=documents, keep=keep, rule=rule,
            kept=kept, layers=layers, steps=steps, needles=needles, heads=heads, oracle=oracle,
            knockout=knockout, seed=seed,
        )  # fmt: skip
    show.emit(found.result) if json else _tables(found.result, out)


def _tables(result: dict[str, Any], out: str) -> None:
    from ..analyze.tables import curve_rows, head_rows, layer_rows, placed

    setting, spent = result["settings"], result["environment"]
    probes = f"{result['data']['documents']} documents of {setting['context']:,} tokens"
    show.line(f"{result['base']}: a window of {setting['window']} in one layer at a time, {probes}")
    show.table(layer_rows(result), "rise of loss, nats a token (95 %)", right=["layer"])
    show.table(head_rows(result), "the same of single KV heads", right=["head"])
    show.table(curve_rows(result), "loss against bytes beside the windows", right=["bytes"])
    for note in result["notes"]:
        show.line(f"note: {note}")
    show.line(f"plan: {placed(result)}; {result['bytes']:,} bytes beside the windows")
    show.line(f"{spent['cpu_seconds']:,.0f} CPU seconds, {spent['measured_now']:,} measurements")
    show.line(f"wrote {out}; use it:  anchorlm convert {result['base']} --plan {out} -o DIR")
