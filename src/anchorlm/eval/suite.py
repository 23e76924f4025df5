"""What a suite is: an entry of the table in `suites.py`, and what it is handed when it runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.data import TokenStore
from anchorlm.data.tokens import tokenizer_fingerprint
from anchorlm.eval.options import EvalOptions
from anchorlm.eval.parts import Parts, model_digest
from anchorlm.eval.stats import bootstrap_groups, sign_flip

PER_PART = 4  # samples after which an interrupted run can go on

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Material:
    """What a suite asks, the same for every model: made and checked before any model is loaded.

    items    whatever the suite's `run` reads: samples, questions, a text
    data     names and hash of what they were made from, for the result file; the hash enters the key of every part
    options  the suite's own options as they were used
    notes    lines for the user: what was left out, and why
    """

    items: Any
    data: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """What every suite needs: the text, the options, where parts are kept and whom to tell."""

    store: TokenStore | None
    tokenizer: Any
    options: EvalOptions
    parts: Parts
    progress: Progress | None
    material: Material | None = None

    def tell(self, what: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(what, done, total)

    def text(self) -> TokenStore:
        assert self.store is not None, "a suite that reads text is only run with one"
        return self.store


@dataclass(frozen=True)
class Suite:
    """One entry of the table.

    prepare(options, tokenizer, store) -> Material; raises UserError for whatever cannot work
    run(name, model, job) -> the row of one model: metric, value, interval, n, unit; value None and a note when the
        model cannot be measured
    lengths(options) -> tokens that a model must be able to read; none for a suite that cuts to the model
    heads, line(row) -> the columns of its table beside the model's name, and their cells
    compare(first, other, seed) -> what is added to `other`: the two rows' difference, paired by sample
    reads_text: whether it takes --data
    detail(result) -> heads and rows of a second table; None where one is enough
    """

    prepare: Callable[[EvalOptions, Any, TokenStore | None], Material]
    run: Callable[[str, Any, Job], dict[str, Any]]
    lengths: Callable[[EvalOptions], Sequence[int]]
    heads: Sequence[str]
    line: Callable[[dict[str, Any]], list[str]]
    compare: Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]
    reads_text: bool = False
    detail: Callable[[dict[str, Any]], tuple[list[str], list[list[str]]]] | None = None


def store_facts(store: TokenStore) -> dict[str, Any]:
    """Names and hash of a text, for a result file."""
    return {"names": list(store.names[:20]), "documents": len(store), "hash": store.content_hash}


def needed(store: TokenStore | None, suite: str, instead: str = "") -> TokenStore:
    """The text, or a UserError that says how to give one."""
    if store is None:
        raise UserError(f"suite {suite} needs --data: a text file or a folder of them{instead}")
    return store


def part_key(suite: str, model: Any, job: Job) -> dict[str, Any]:
    """What every kept part of this suite depends on, beside its own settings."""
    made_from = job.material.data if job.material else store_facts(job.text())
    vocabulary = job.store.tokenizer_hash if job.store else tokenizer_fingerprint(job.tokenizer)
    return {"suite": suite, "model": model_digest(model), "data": made_from["hash"], "tokenizer": vocabulary}


def span(interval: list[float] | None, pattern: str) -> str:
    """An interval as a cell of a table."""
    return "-" if interval is None else " to ".join(pattern.format(end) for end in interval)


def answers_in_parts(
    job: Job, key: dict[str, Any], items: Sequence[Any], compute: Callable[[Any], Any], label: str
) -> list[Any]:
    """`compute` of every item, kept in parts of PER_PART. An item has a `digest` that changes with all it asks."""
    found: list[Any] = []
    for begin in range(0, len(items), PER_PART):
        group = items[begin : begin + PER_PART]

        def answers(group: Sequence[Any] = group) -> list[Any]:
            return [compute(item) for item in group]

        found += job.parts.run(key | {"items": [item.digest for item in group]}, answers)
        job.tell(label, len(found), len(items))
    return found


def model_key(suite: str, model: Any, job: Job) -> dict[str, Any]:
    """What answers depend on beside the items asked."""
    return {"suite": suite, "model": model_digest(model), "tokenizer": tokenizer_fingerprint(job.tokenizer)}


def digest_of(items: Sequence[Any]) -> str:
    """16 hex digits for a list of items, for the result file."""
    return hashlib.sha256(" ".join(item.digest for item in items).encode()).hexdigest()[:16]


def sampled_row(cells: list[dict[str, Any]], samples: list[dict[str, Any]], seed: int, **facts: Any) -> dict[str, Any]:
    """The row of a suite of scored samples in cells of equal weight.

    samples: `id`, `cell` and `score` (0 to 1) of each; `text` where several are asked of one text, which are then drawn
    together, whichever cells they are in. cells: `id`, and a `note` where nothing was measured.
    value: mean of the cells' means; interval: bootstrap over the texts of each cell, or of cells that share some.
    """
    filled = [cell | _cell([s for s in samples if s["cell"] == cell["id"]], seed) for cell in cells]
    base = {"n": len(samples), "unit": "samples", "cells": filled, "samples": samples, **facts}
    if not samples:
        note = next((cell["note"] for cell in cells if cell.get("note")), "nothing measured")
        return {**base, "value": None, "interval": None, "note": note}
    return {**base, "value": _mean(samples), "interval": bootstrap_groups(_groups(samples), seed)}


def _mean(samples: list[dict[str, Any]]) -> float:
    """Of the cells' means."""
    scores: dict[str, list[float]] = {}
    for sample in samples:
        scores.setdefault(sample["cell"], []).append(sample["score"])
    return float(np.mean([np.mean(found) for found in scores.values()]))


def _cell(samples: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    if not samples:
        return {"n": 0, "value": None, "interval": None}
    return {"n": len(samples), "value": _mean(samples), "interval": bootstrap_groups(_groups(samples), seed)}


def _text(sample: dict[str, Any]) -> str:
    return sample.get("text", sample["id"])


def _groups(samples: list[dict[str, Any]]) -> list[np.ndarray]:
    """[texts, cells, 2] of each group of cells that have texts in common: sum and number of a text's scores in each."""
    texts: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        texts.setdefault(_text(sample), {}).setdefault(sample["cell"], []).append(sample["score"])
    groups: list[list[str]] = []
    for cells in texts.values():
        apart = [group for group in groups if cells.keys().isdisjoint(group)]
        met = [cell for group in groups if group not in apart for cell in group]
        groups = [*apart, list(dict.fromkeys([*met, *cells]))]
    return [_table(group, texts.values()) for group in groups]


def _table(group: list[str], texts: Iterable[Mapping[str, list[float]]]) -> np.ndarray:
    own = [cells for cells in texts if not cells.keys().isdisjoint(group)]
    return np.array([[[sum(cells.get(cell, ())), len(cells.get(cell, ()))] for cell in group] for cells in own], float)


def compare_samples(first: dict[str, Any], other: dict[str, Any], seed: int) -> dict[str, Any]:
    """The first row's value less the other's, over the samples that both were asked; cells and texts weigh as there.

    Samples of one text are drawn together for the interval, and flip their signs together for the p-value.
    """
    theirs = {sample["id"]: sample["score"] for sample in other["samples"]}
    gaps = [s | {"score": s["score"] - theirs[s["id"]]} for s in first["samples"] if s["id"] in theirs]
    if not gaps:
        return {"first_minus_this": {"value": None, "interval": None, "p": None, "n": 0}}
    sizes = Counter(sample["cell"] for sample in gaps)
    texts: dict[str, float] = {}
    for sample in gaps:
        texts[_text(sample)] = texts.get(_text(sample), 0.0) + sample["score"] / sizes[sample["cell"]] / len(sizes)
    interval, p = bootstrap_groups(_groups(gaps), seed), sign_flip(np.array(list(texts.values())), seed)
    return {"first_minus_this": {"value": _mean(gaps), "interval": interval, "p": p, "n": len(gaps)}}


def cell_table(
    result: dict[str, Any],
    head: str,
    name: Callable[[dict[str, Any]], str],
    column: Callable[[dict[str, Any]], str] = lambda cell: "",
) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of every cell's share: a row for each `name`, a column for each model and `column`."""
    placed = {
        (f"{row['model']} {column(cell)}".strip(), name(cell)): cell for row in result["rows"] for cell in row["cells"]
    }
    columns, names = (list(dict.fromkeys(key[side] for key in placed)) for side in (0, 1))
    return [head, *columns], [[one, *(_share(placed.get((place, one))) for place in columns)] for one in names]


def _share(cell: dict[str, Any] | None) -> str:
    return "-" if cell is None or cell["value"] is None else f"{cell['value']:.0%} of {cell['n']}"
