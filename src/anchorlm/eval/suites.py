"""The table of suites, and the two that read running text: perplexity and needles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from anchorlm.data import TokenStore
from anchorlm.data.filler import noise_store
from anchorlm.data.needles import Needles
from anchorlm.eval import ar, niah, ppl, recall, ruler
from anchorlm.eval.options import FILLER, EvalOptions
from anchorlm.eval.suite import Job, Material, Suite, compare_samples, needed, part_key, span, store_facts
from anchorlm.eval.tasks import QUESTIONS
from anchorlm.reading import beyond

PIECES_PER_PART = 8  # perplexity documents after which an interrupted run can go on


def prepare_ppl(options: EvalOptions, tokenizer: Any, store: TokenStore | None) -> Material:
    store = needed(store, "ppl")
    ppl.cut(store, options.context, options.limit, options.tails)
    return Material(store, store_facts(store))


def run_ppl(name: str, model: Any, job: Job) -> dict[str, Any]:
    options, store = job.options, job.text()
    if note := beyond(model, options.context):
        return {"metric": "perplexity", "value": None, "interval": None, "n": 0, "unit": "documents", "note": note}
    pieces = ppl.cut(store, options.context, options.limit, options.tails)
    key = part_key("ppl", model, job) | {"groups": ppl.GROUPING, "context": options.context}
    key |= {"window": options.window, "tails": options.tails}
    key |= {"limit": options.limit} if options.limit else {}  # it decides which pieces the first ones are
    rows: list[dict] = []
    for begin in range(0, len(pieces), PIECES_PER_PART):
        part = pieces[begin : begin + PIECES_PER_PART]

        def compute(part: list[np.ndarray] = part) -> list[dict]:
            settings = {"window": options.window, "batch": options.batch, "block": options.block}
            return ppl.score(model, part, options.context, **settings)

        rows += job.parts.run(key | {"first": begin, "count": len(part)}, compute)
        job.tell(f"ppl {name}", len(rows), len(pieces))
    return {**ppl.summary(rows, store.bytes_per_token, options.seed), "documents": rows}


def compare_ppl(first: dict[str, Any], other: dict[str, Any], seed: int) -> dict[str, Any]:
    """The first row's perplexity over the other's."""
    return {"first_over_this": ppl.ratio(first["documents"], other["documents"], seed)}


def ppl_line(row: dict[str, Any]) -> list[str]:
    groups = [row["groups"].get(name) for name in ("first_half", "second_half", "cross_window")]
    halves = [f"{group['ppl']:.2f}" if group else "-" for group in groups]
    interval = span(row["interval"], "{:.2f}")
    return [f"{row['value']:.2f}", interval, *halves, f"{row['bits_per_byte']:.3f}", str(row["n"])]


def ppl_detail(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Perplexity by position, and by how far back the word pair was last seen: a row each, a column for each model."""
    rows = [row for row in result["rows"] if row["value"] is not None]
    found = {(row["model"], part["name"]): part for row in rows for by in ppl.BY for part in row[by]}
    names = list(dict.fromkeys(name for _, name in found))
    heads = ["tokens", *(row["model"] for row in rows)]
    return heads, [[name, *(_part(found.get((row["model"], name))) for row in rows)] for name in names]


def _part(part: dict[str, Any] | None) -> str:
    return f"{part['ppl']:.2f} of {part['tokens']:,}" if part else "-"


def prepare_niah(options: EvalOptions, tokenizer: Any, store: TokenStore | None) -> Material:
    if options.haystack == FILLER:
        store = noise_store(tokenizer, max(int(length) for length in options.prompt_lengths))
    store = needed(store, "niah", ", or --set haystack=filler")
    needles = Needles(store, tokenizer, options.kind, options.wordings)
    for length in options.prompt_lengths:
        niah.prompts(needles, length, 0.5, 1, options.seed)
    return Material(needles, store_facts(store))


def run_niah(name: str, model: Any, job: Job) -> dict[str, Any]:
    options = job.options
    text = job.material.items.store if job.material else job.text()
    needles = Needles(text, job.tokenizer, options.kind, options.wordings)
    lengths = options.prompt_lengths
    depths, count = within_limit(options)
    key = part_key("niah", model, job) | {"kind": options.kind, "templates": [t.name for t in needles.templates]}
    key |= {"depths": depths, "n": count, "seed": options.seed, "texts": niah.TEXTS}
    places = [(length, text) for length in lengths for text in niah.texts_of(depths, count)]
    cells: list[dict] = []
    for length in lengths:

        def keep(text: int, compute: Callable[[], Any], length: int = length) -> Any:
            found = job.parts.run(key | {"length": length, "text": text}, compute)
            job.tell(f"niah {name}", places.index((length, text)) + 1, len(places))
            return found

        settings = {"batch": options.batch, "block": options.block}
        cells += niah.niah_cells(model, needles, length, depths, count, options.seed, keep, **settings)
    return niah.niah_summary(cells, options.seed)


def compare_niah(first: dict[str, Any], other: dict[str, Any], seed: int) -> dict[str, Any]:
    """The first row's share of needles found less the other's, on the needles that both were asked."""
    return compare_samples(*({"samples": list(_needles(row))} for row in (first, other)), seed)


def _needles(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """1 or 0 of every needle, by where it was hidden and in which text."""
    for cell in row["cells"]:
        length, depth = cell["length"], cell["depth"]
        for at, answer in enumerate(cell.get("answers", ())):
            place, text = f"{length}/{depth}", f"{length}/text {niah.text_of(depth, at)}"
            yield {"id": f"{place}/{at}", "cell": place, "text": text, "score": float(answer["exact"])}


def niah_line(row: dict[str, Any]) -> list[str]:
    digits = f"{row['digits']['value']:.0%}"
    return [f"{row['value']:.0%}", span(row["interval"], "{:.0%}"), digits, str(row["n"]), _by_length(row)]


def _by_length(row: dict[str, Any]) -> str:
    """Hits of each length, as in 2,048: 12/20."""
    shares: dict[int, list[int]] = {}
    for cell in row["cells"]:
        hits = shares.setdefault(cell["length"], [0, 0])
        hits[0] += sum(answer["exact"] for answer in cell.get("answers", ()))
        hits[1] += cell["n"]
    return "; ".join(f"{length:,}: {hit}/{n}" if n else f"{length:,}: -" for length, (hit, n) in shares.items())


def within_limit(options: EvalOptions) -> tuple[tuple[float, ...], int]:
    """Depths and needles for each so that one length has at most `limit` needles, spread over the depths."""
    depths, limit = options.depths, options.limit
    if limit is None:
        return depths, options.needles
    if limit < len(depths):
        depths = tuple(depths[int(i)] for i in np.linspace(0, len(depths) - 1, limit + 2)[1:-1].round())
    return depths, max(1, min(options.needles, limit // len(depths)))


SUITES: Mapping[str, Suite] = {
    **QUESTIONS,
    "ppl": Suite(
        prepare=prepare_ppl,
        run=run_ppl,
        lengths=lambda options: [options.context],
        heads=("perplexity", "95 %", "1st half", "2nd half", "cross-window", "bits/byte", "documents"),
        line=ppl_line,
        compare=compare_ppl,
        detail=ppl_detail,
        reads_text=True,
    ),
    "niah": Suite(
        prepare=prepare_niah,
        run=run_niah,
        lengths=lambda options: options.prompt_lengths,
        heads=("exact", "95 %", "digits", "needles", "by length"),
        line=niah_line,
        compare=compare_niah,
        reads_text=True,
    ),
    "ruler": ruler.SUITE,
    "recall": recall.SUITE,
    "ar": ar.SUITE,
}
