"""What is measured of every row, cell by cell, each kept under all that fixes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..data import TokenStore
from ..data.needles import Needles, choose_templates
from ..eval import EvalOptions, ppl
from ..eval.niah import DEPTHS, TEXTS, prompts, texts_of
from ..eval.parts import Parts
from ..eval.suite import Job, Progress
from ..eval.suites import run_niah, run_ppl, within_limit
from .table import Table

TEST = "test"
SHOWN = ("metric", "value", "interval", "n", "unit", "note", "groups", "bits_per_byte", "documents", "digits")
GROUPS = ("all", "cross_window")  # of every document; intervals and shares of the gap are found from these


@dataclass(frozen=True)
class Cell:
    """One figure of a row: perplexity of a text, or needles of one wording at one length."""

    name: str
    suite: Callable[[str, Any, Job], dict[str, Any]]
    store: TokenStore
    options: EvalOptions
    key: dict[str, Any]

    def fixed(self) -> dict[str, Any]:
        """All that fixes a figure but the row's weights."""
        texts = {"data": self.store.content_hash, "tokenizer": self.store.tokenizer_hash}
        return {"table": self.name.partition(" ")[0], "seed": self.options.seed, **texts, **self.key}

    def key_of(self, digest: str) -> dict[str, Any]:
        """What a figure of the row with this digest is kept under."""
        return self.fixed() | {"row": digest}

    def check(self, tokenizer: Any) -> None:
        """Raise UserError when the text is too short for this cell."""
        if self.suite is run_ppl:
            ppl.cut(self.store, self.options.context, self.options.limit)
        else:
            needles = Needles(self.store, tokenizer, templates=str(self.options.templates))
            prompts(needles, max(self.options.lengths or ()), 0.5, 1, self.options.seed)

    def measure(self, name: str, model: Any, tokenizer: Any, parts: Parts, progress: Progress | None) -> dict[str, Any]:
        return self.suite(name, model, Job(self.store, tokenizer, self.options, parts, progress))


def cells(table: Table, stores: Mapping[str, TokenStore]) -> list[Cell]:
    """Every cell of a row, the quick ones first: perplexity of each text, then needles in the test text."""
    needles = [_needles(table, w, n, stores[TEST]) for n in table.lengths for w in table.wordings]
    return [_perplexity(table, text, store) for text, store in stores.items()] + needles


def _perplexity(table: Table, text: str, store: TokenStore) -> Cell:
    values = {"context": table.context, "limit": table.limit, "window": table.window}
    return Cell(f"perplexity {text}", run_ppl, store, EvalOptions.of(seed=table.seed, **values), values)


def _needles(table: Table, wording: str, length: int, store: TokenStore) -> Cell:
    """At least `table.needles`, as many at each depth; fewer than there are depths stand at depths spread evenly."""
    spread = _spread(table)
    options = EvalOptions.of(lengths=[length], templates=wording, seed=table.seed, **spread)
    names = [t.name for t in choose_templates(wording)]
    key = {"length": length, "templates": names, "texts": TEXTS, **spread}
    return Cell(needle_name(wording, length), run_niah, store, options, key)


def _spread(table: Table) -> dict[str, int]:
    count = table.needles
    return {"limit": count} if count < len(DEPTHS) else {"needles": -(-count // len(DEPTHS))}


def needle_texts(table: Table) -> int:
    """How many texts hold the needles of one length."""
    return len(texts_of(*within_limit(EvalOptions.of(**_spread(table)))))


def needle_name(wording: str, length: int) -> str:
    return f"needles {wording} {length}"


def slim(value: dict[str, Any]) -> dict[str, Any]:
    """A figure without what no page shows: answers to single needles, and regions of each document."""
    small = {name: part for name, part in value.items() if name in SHOWN}
    if "documents" in small:
        small["documents"] = [
            {group: [round(nats, 4), count] for group, (nats, count) in document.items() if group in GROUPS}
            for document in small["documents"]
        ]
    return small
