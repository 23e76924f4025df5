"""What is measured of every row, cell by cell, each kept under all that fixes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..data import TokenStore, wordings
from ..data.needles import Needles, choose_templates
from ..eval import EvalOptions, ppl, ruler
from ..eval.facts import FACTS, fact_texts, run_facts
from ..eval.niah import DEPTHS, TEXTS, prompts, texts_of
from ..eval.parts import Parts
from ..eval.suite import Job, Progress
from ..eval.suites import run_niah, run_ppl, within_limit
from .speed import ROUNDS, WRITTEN, run_speed
from .table import Table

TEST = "test"
RECALL, SPEED, RULER = "recall", "speed", "ruler"
SHOWN = ("metric", "value", "interval", "n", "unit", "note", "groups", "bits_per_byte", "documents", "digits", "speeds",
         "by_task")  # fmt: skip
GROUPS = ("all", "cross_window")  # of every document; intervals and shares of the gap are found from these


@dataclass(frozen=True)
class Cell:
    """One figure of a row: perplexity of a text, needles of one wording at one length, recall, or speed.

    try_text(store, options, tokenizer): raises UserError when the text is too short for it.
    """

    name: str
    suite: Callable[[str, Any, Job], dict[str, Any]]
    try_text: Callable[[TokenStore, EvalOptions, Any], Any]
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
        self.try_text(self.store, self.options, tokenizer)

    def measure(self, name: str, model: Any, tokenizer: Any, parts: Parts, progress: Progress | None) -> dict[str, Any]:
        return self.suite(name, model, Job(self.store, tokenizer, self.options, parts, progress))


def cells(table: Table, stores: Mapping[str, TokenStore]) -> list[Cell]:
    """Every cell of a row: perplexity of each text, then what is asked in the test text, then speed."""
    found = [_perplexity(table, text, store) for text, store in stores.items()]
    found += [_needles(table, w, n, stores[TEST]) for n in table.lengths for w in table.wordings]
    found += [_recall(table, stores[TEST])] if table.recall else []
    found += [_ruler(table, stores[TEST])] if table.ruler else []
    return found + ([_speed(table, stores[TEST])] if table.speed else [])


def _perplexity(table: Table, text: str, store: TokenStore) -> Cell:
    values = {"context": table.context, "limit": table.limit, "window": table.window}
    return Cell(f"perplexity {text}", run_ppl, _try_pieces, store, EvalOptions.of(seed=table.seed, **values), values)


def _try_pieces(store: TokenStore, options: EvalOptions, tokenizer: Any) -> None:
    ppl.cut(store, options.context, options.limit)


def _needles(table: Table, wording: str, length: int, store: TokenStore) -> Cell:
    """At least `table.needles`, as many at each depth; fewer than there are depths stand at depths spread evenly."""
    spread = _spread(table)
    options = EvalOptions.of(lengths=[length], templates=wording, seed=table.seed, **spread)
    names = [t.name for t in choose_templates(wording)]
    key = {"length": length, "templates": names, "texts": TEXTS, **spread}
    return Cell(needle_name(wording, length), run_niah, _try_needle, store, options, key)


def _try_needle(store: TokenStore, options: EvalOptions, tokenizer: Any) -> None:
    needles = Needles(store, tokenizer, templates=str(options.templates))
    prompts(needles, max(options.lengths or ()), 0.5, 1, options.seed)


def _recall(table: Table, store: TokenStore) -> Cell:
    values = {"context": table.context, "window": table.window, "limit": table.recall}
    options = EvalOptions.of(seed=table.seed, **values)
    key = values | {"facts": FACTS, "wordings": wordings.fingerprint(wordings.HELD_OUT)}
    return Cell(RECALL, run_facts, _try_facts, store, options, key)


def _try_facts(store: TokenStore, options: EvalOptions, tokenizer: Any) -> None:
    fact_texts(store, tokenizer, replace(options, limit=1))


def _ruler(table: Table, store: TokenStore) -> Cell:
    own = table.ruler.model_dump()
    values = {name: value for name, value in own.items() if value and name != "lengths"}
    options = EvalOptions.of(lengths=own["lengths"], seed=table.seed, ruler=values)
    return Cell(RULER, _run_ruler, _prepared_ruler, store, options, json.loads(json.dumps(own)))


def _run_ruler(name: str, model: Any, job: Job) -> dict[str, Any]:
    material = _prepared_ruler(job.text(), job.options, job.tokenizer)
    row = ruler.run(name, model, replace(job, material=material))
    return row | {"by_task": [{name: cell[name] for name in ("task", "length", "value")} for cell in row["cells"]]}


def _prepared_ruler(store: TokenStore, options: EvalOptions, tokenizer: Any) -> Any:
    return ruler.prepare(options, tokenizer, store)


def _speed(table: Table, store: TokenStore) -> Cell:
    values = {"context": table.speed}
    key = values | {"written": WRITTEN, "rounds": ROUNDS}
    return Cell(SPEED, run_speed, lambda *_: None, store, EvalOptions.of(seed=table.seed, **values), key)


def _spread(table: Table) -> dict[str, int]:
    count = table.needles
    return {"limit": count} if count < len(DEPTHS) else {"needles": -(-count // len(DEPTHS))}


def needle_texts(table: Table) -> int:
    """How many texts hold the needles of one length."""
    return len(texts_of(*within_limit(EvalOptions.of(**_spread(table)))))


def needles_in_window(table: Table) -> dict[str, int]:
    """By length: some tokens between its deepest needle and the question, where that is within the window."""
    depths, _ = within_limit(EvalOptions.of(**_spread(table)))
    found = {str(length): round((1 - max(depths)) * length) for length in table.lengths}
    return {length: tokens for length, tokens in found.items() if tokens < table.window}


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
