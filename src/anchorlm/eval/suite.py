"""What a suite is: an entry of the table in `suites.py`, and what it is handed when it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchorlm.core import UserError
from anchorlm.data import TokenStore
from anchorlm.data.tokens import tokenizer_fingerprint
from anchorlm.eval.options import EvalOptions
from anchorlm.eval.parts import Parts, model_digest

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
    """

    prepare: Callable[[EvalOptions, Any, TokenStore | None], Material]
    run: Callable[[str, Any, Job], dict[str, Any]]
    lengths: Callable[[EvalOptions], Sequence[int]]
    heads: Sequence[str]
    line: Callable[[dict[str, Any]], list[str]]
    compare: Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]
    reads_text: bool = False


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
