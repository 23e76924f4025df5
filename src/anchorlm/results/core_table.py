"""The table of the README: one small real model as it is, with a window alone, and with memory, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..bench import measure
from ..bench.retention import CHUNKS, retention
from ..bench.worker import TIGHT, ModelSpec, measure_peak
from ..convert import files
from ..convert.bases import load_base_config
from ..convert.summary import stored_lora, summary
from ..core import UserError, atomic_file, seed_all
from ..data import read_documents
from ..environment import environment
from ..eval import run_eval
from ..eval.kept import check_ours, check_run_folder
from ..eval.parts import Parts, model_digest
from ..plan import ModelShape
from ..presets import build
from ..shipped import located
from .summary import KIND

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Core:
    """What `results core` measures. Lengths in tokens; `limit` perplexity documents at most."""

    data: tuple[str, ...]
    base: str = "smollm2-135m"
    adapter: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    window: int = 128
    sinks: int = 4
    context: int = 2048
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    limit: int | None = None
    new_tokens: int = 32
    rounds: int = 3
    seed: int = 0
    dtype: str = "auto"
    device: str = "cpu"
    peaks: bool = True

    def specs(self) -> dict[str, ModelSpec]:
        """Each row's model: the teacher, the window alone, Anchor-F as converted, the adapter, then the extra rows."""
        shape = ModelShape.from_config(load_base_config(self.base))
        rows: dict[str, ModelSpec] = {"teacher": ModelSpec(self.base, None, self.dtype, self.device)}
        for name in ("swa", "anchor-f"):
            plan = build(name, shape, window=self.window, sinks=self.sinks).to_dict()
            rows[name] = ModelSpec(self.base, plan, self.dtype, self.device)
        given = {**({"anchor": self.adapter} if self.adapter else {}), **self.extra}
        return rows | {name: ModelSpec(path, None, self.dtype, self.device) for name, path in given.items()}


def core(settings: Core, out: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """Measure every row and write core.json, core.md, ppl.json and bench.json to `out`; returns the first.

    Each cell is kept once measured: a run that was stopped goes on, a finished one only writes the files again.
    Raises UserError for missing text, base or adapter before anything is measured.
    """
    check_core(out)
    out = Path(out)
    for name, path in settings.extra.items():
        if not Path(path).is_dir():
            raise UserError(f"row {name!r}: folder {path} does not exist")
    specs = settings.specs()
    opened = {name: spec.open() for name, spec in specs.items()}
    models = {name: model for name, (model, _) in opened.items()}
    ppl = _perplexities(settings, models, opened["teacher"][1], out, progress)
    bench = _bench(settings, models, specs, Parts(out / "parts"), progress)
    result = {
        "kind": KIND,
        "name": "core",
        "settings": {**vars(settings), "extra": dict(settings.extra)},
        "environment": environment(models["teacher"]),
        "data": ppl["data"],
        "rows": [_row(row, bench["rows"], specs[row["model"]]) for row in ppl["rows"]],
    }
    _write(out, result, bench)
    return result


def check_core(out: str | Path) -> None:
    """Raise UserError where `core` cannot write, or would write over what is not of such a run."""
    check_run_folder(out)
    check_ours(Path(out) / "core.json", KIND, ".md")
    for name, kind in (("bench", "bench"), ("ppl", "eval")):
        check_ours(Path(out) / f"{name}.json", kind)


def keep_retention(settings: Core, out: str | Path) -> dict[str, Any]:
    """What untrained slots of the preset `anchor` keep of the given text; writes retention.json to `out`."""
    check_run_folder(out)
    check_ours(Path(out) / "retention.json", "retention")
    shape = ModelShape.from_config(load_base_config(settings.base))
    seed_all(settings.seed)
    plan = build("anchor", shape, window=settings.window, sinks=settings.sinks)
    model, tokenizer = ModelSpec(settings.base, plan.to_dict(), settings.dtype, settings.device).open()
    text = next(iter(read_documents(settings.data))).text
    length = CHUNKS * settings.window
    ids = torch.tensor([tokenizer(text[: 12 * length]).input_ids[:length]], device=settings.device)
    result = retention(model, ids) | {"name": "retention", "data": list(settings.data), "seed": settings.seed}
    with atomic_file(Path(out) / "retention.json") as file:
        json.dump(result, file, indent=1)
    return result


def _perplexities(
    settings: Core, models: dict[str, Any], tokenizer: Any, out: Path, progress: Progress | None
) -> dict[str, Any]:
    others = {name: model for name, model in models.items() if name != "teacher"}
    options = {"limit": settings.limit, "seed": settings.seed, "window": settings.window}
    return run_eval(
        models["teacher"], tokenizer, "ppl", settings.data, settings.context, name="teacher", versus=others, out=out,
        progress=progress, **options,
    )["ppl"]  # fmt: skip


def _write(out: Path, result: dict[str, Any], bench: dict[str, Any]) -> None:
    for name, content in (("bench", bench), ("core", result)):
        with atomic_file(out / f"{name}.json") as file:
            json.dump(content, file, indent=1)
    with atomic_file(out / "core.md") as file:
        file.write(markdown(result))


COSTS: dict[str, Callable[[float], str]] = {
    "state_bytes_most": lambda v: f"{v / 1e6:.2f} MB",
    "peak_bytes": lambda v: f"{v / 1e6:.0f} MB",
    "prefill_tokens_per_s": lambda v: f"{v:,.0f}",
    "decode_ms": lambda v: f"{v:.1f}",
}


def _bench(
    settings: Core, models: dict[str, Any], specs: dict[str, ModelSpec], parts: Parts, progress: Progress | None
) -> dict[str, Any]:
    """Speeds of all models at each length, kept by length; peaks of each model at each length, kept one by one."""
    digests = {name: model_digest(model) for name, model in models.items()}
    shared = {"new_tokens": settings.new_tokens, "seed": settings.seed}
    where = {name: value for name, value in environment().items() if name in ("processor", "threads", "accelerator")}
    found: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for done, length in enumerate(settings.lengths):

        def speeds(length: int = length) -> dict[str, Any]:
            return measure(models, [length], rounds=settings.rounds, **shared)

        found = parts.run({"bench": length, "models": digests, "rounds": settings.rounds, **shared, **where}, speeds)
        rows += found["rows"]
        _tell(progress, "speed", done + 1, len(settings.lengths))
    for done, row in enumerate(rows if settings.peaks else []):
        name, length = row["model"], row["length"]

        def peak(name: str = name, length: int = length) -> dict[str, Any]:
            return measure_peak(specs[name], length)

        found_peak = parts.run({"peak": length, "model": digests[name], "allocator": TIGHT}, peak)
        row |= {
            "peak_bytes": found_peak["growth"],
            "peak_spread": found_peak["spread"],
            "peak_runs": found_peak["runs"],
        }
        _tell(progress, "peak memory", done + 1, len(rows))
    return {**found, "rows": rows}


def _tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress:
        progress(what, done, total)


def _row(row: dict[str, Any], bench: list[dict[str, Any]], spec: ModelSpec) -> dict[str, Any]:
    costs = (
        "prefill_tokens_per_s",
        "prefill_spread",
        "decode_ms",
        "decode_spread",
        "state_bytes",
        "state_bytes_most",
        "peak_bytes",
        "peak_spread",
        "peak_runs",
        "note",
    )
    return {
        "model": row["model"],
        "perplexity": row["value"],
        "interval": row["interval"],
        "groups": row.get("groups", {}),
        "documents": row["n"],
        "trained_parameters": trained_parameters(spec),
        "source": spec.source,
        "costs": {
            str(cell["length"]): {name: cell[name] for name in costs if name in cell}
            for cell in bench
            if cell["model"] == row["model"]
        },
    }


def trained_parameters(spec: ModelSpec) -> int:
    """Memory and LoRA parameters of an anchorlm folder; 0 for a base, also when it is converted but not trained."""
    config = files.read_config(located(spec.source))
    if config is None:
        return 0
    from transformers import AutoConfig

    from ..plan import Plan

    backbone = AutoConfig.for_model(**config["backbone"])
    plan = Plan.from_dict(config["plan"], backbone.num_hidden_layers)
    counts = summary(backbone, plan, stored_lora(spec.source))["parameters"]
    return counts["memory"] + counts["lora"]


def markdown(result: dict[str, Any]) -> str:
    """The result as a page of Markdown."""
    settings, facts = result["settings"], result["environment"]
    lengths = [str(length) for length in settings["lengths"]]
    quality = [["model", "perplexity", "95 %", "first half", "second half", "cross-window", "trained"]]
    quality += [_quality(row) for row in result["rows"]]
    costs = [["model", *(f"{name} {short(n)}" for name in ("state", "peak", "read t/s", "ms/token") for n in lengths)]]
    costs += [[row["model"], *(_cost(row, n, name) for name in COSTS for n in lengths)] for row in result["rows"]]
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    notes = sorted({cell["note"] for row in result["rows"] for cell in row["costs"].values() if "note" in cell})
    return "\n".join(
        [
            f"# {settings['base']}, window {settings['window']}, {settings['sinks']} sinks",
            "",
            f"Perplexity on {', '.join(result['data']['names'])} (text {result['data']['hash']}) in "
            f"pieces of {settings['context']:,} tokens ({_pieces(result)} of them); cross-window: tokens whose "
            f"bigram was last seen more than {settings['window']} tokens before.",
            "",
            *markdown_table(quality),
            "",
            "State of one sequence at its fullest, peak memory above the loaded model (median of three processes), "
            "reading speed, one more token:",
            "",
            *markdown_table(costs),
            "",
            *[f"Teacher at the longest lengths: {note}; its times are right, its text would not be." for note in notes],
            f"Seed {settings['seed']}, {facts['dtype']}, {facts['threads']} threads, {facts['processor']}; {versions}.",
            "",
        ]
    )


def _quality(row: dict[str, Any]) -> list[str]:
    if row["perplexity"] is None:
        return [row["model"], *["-"] * 5, f"{row['trained_parameters']:,}"]
    groups = [row["groups"].get(name) for name in ("first_half", "second_half", "cross_window")]
    span = "-" if row["interval"] is None else f"{row['interval'][0]:.2f} to {row['interval'][1]:.2f}"
    figures = [f"{group['ppl']:.2f}" if group else "-" for group in groups]
    return [row["model"], f"{row['perplexity']:.2f}", span, *figures, f"{row['trained_parameters']:,}"]


def _cost(row: dict[str, Any], length: str, name: str) -> str:
    value = row["costs"].get(length, {}).get(name)
    return "-" if value is None else COSTS[name](value)


def short(length: int | str) -> str:
    """A length for a column's head, as 4K."""
    return f"{int(length) / 1024:.3g}K" if int(length) >= 1024 else str(length)


def _pieces(result: dict[str, Any]) -> int:
    return max(row["documents"] for row in result["rows"])


def markdown_table(lines: list[list[str]], texts: int = 1) -> list[str]:
    """Lines of Markdown of a table whose first line is the heads; all columns but the first `texts` hold figures."""
    heads, *rows = [f"| {' | '.join(map(_one_line, line))} |" for line in lines]
    return [heads, "|---" * texts + "|---:" * (len(lines[0]) - texts) + "|", *rows]


def _one_line(cell: str) -> str:
    """A cell that neither a line break nor a bar of its own ends early."""
    return " ".join(cell.split()).replace("|", "\\|")
