"""Recall inside running text: several facts further back than a window, all asked for at the end of the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from anchorlm.data import TokenStore
from anchorlm.data.distances import RecallText, recall_text
from anchorlm.data.recall import RecallSource
from anchorlm.data.wordings import HELD_OUT
from anchorlm.eval.options import EvalOptions
from anchorlm.eval.scoring import token_scores
from anchorlm.eval.stats import bootstrap_ratio, wilson
from anchorlm.eval.suite import Job, part_key
from anchorlm.reading import beyond

FACTS = 4  # in each text; none is in the window of the question that asks for it


def fact_texts(store: TokenStore, tokenizer: Any, options: EvalOptions) -> list[RecallText]:
    """`options.limit` texts of `options.context` tokens, with facts more than `options.window` tokens back.

    Wordings are those of held-out needles. Raises UserError when text or context has no room for them.
    """
    source = RecallSource(store, tokenizer, options.context, sentences=HELD_OUT)
    spans = [(options.window or 0, options.context - 1)] * FACTS
    draws = [np.random.default_rng([options.seed, 11, index]) for index in range(options.limit or 1)]
    return [recall_text(source, spans, rng) for rng in draws]


def run_facts(name: str, model: Any, job: Job) -> dict[str, Any]:
    """Share of answers of which every token is the most likely one after the true ones; `digits`: share of tokens."""
    options = job.options
    base = {"metric": "answers right", "unit": "answers"}
    if note := beyond(model, options.context):
        return {**base, "value": None, "interval": None, "n": 0, "note": note}
    texts, rows = fact_texts(job.text(), job.tokenizer, options), []
    key = part_key("facts", model, job) | {"context": options.context, "window": options.window, "seed": options.seed}
    for index, text in enumerate(texts):

        def compute(text: RecallText = text) -> dict[str, int]:
            return answered(model, text, options.block)

        rows.append(job.parts.run(key | {"facts": FACTS, "text": index}, compute))
        job.tell(f"recall {name}", index + 1, len(texts))
    return base | summary(rows, options.seed)


def answered(model: Any, text: RecallText, block: int = 512) -> dict[str, int]:
    """Of one text: answers and how many are right, tokens of answers and how many are."""
    _, hits = token_scores(model, torch.from_numpy(text.ids)[None], block)
    found = [hits[0, query.targets - 1].numpy() for query in text.queries]
    return {
        "right": sum(bool(hit.all()) for hit in found),
        "answers": len(found),
        "tokens_right": sum(int(hit.sum()) for hit in found),
        "tokens": sum(len(hit) for hit in found),
    }


def summary(rows: list[dict[str, int]], seed: int) -> dict[str, Any]:
    """Share of answers with its 95 % interval as if they were independent, and of tokens by bootstrap over texts."""
    sums = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    right, answers = int(sums["right"].sum()), int(sums["answers"].sum())
    digits = {
        "value": float(sums["tokens_right"].sum() / sums["tokens"].sum()),
        "interval": bootstrap_ratio(sums["tokens_right"], sums["tokens"], seed),
    }
    return {"value": right / answers, "interval": wilson(right, answers), "n": answers, "digits": digits}
