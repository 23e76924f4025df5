"""Associative recall with any causal model: accuracy by the distance back to the pair."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from anchorlm.core import MANY
from anchorlm.data import TokenStore
from anchorlm.data.associative import AssociativeRecall, Recall
from anchorlm.data.crossing import distance_bins
from anchorlm.eval.options import EvalOptions, check_count, check_lengths
from anchorlm.eval.scoring import token_scores
from anchorlm.eval.suite import (
    Job,
    Material,
    Suite,
    answers_in_parts,
    cell_table,
    compare_samples,
    digest_of,
    model_key,
    sampled_row,
    span,
)
from anchorlm.reading import beyond

FIRST_BIN = 128  # tokens, for models without a window


@dataclass(frozen=True)
class ArOptions:
    """samples: sequences of each length; --limit lowers it. queries: in each, at distances spread over the length.

    distances: in tokens, multiples of those of a line (4 for most tokenizers), one query at each, instead.
    """

    samples: int = 8
    queries: int = 16
    distances: tuple[int, ...] | None = None


def prepare(options: EvalOptions, tokenizer: Any, store: TokenStore | None) -> Material:
    own = options.own_of("ar", ArOptions)
    check_count("ar.samples", own.samples, most=MANY)
    check_count("ar.queries", own.queries, most=MANY)
    if own.distances is not None:
        check_lengths("ar.distances", own.distances)
    source, count = AssociativeRecall(tokenizer), min(own.samples, options.limit or own.samples)
    items = [
        (int(length), index, _sequence(source, int(length), own, [options.seed, int(length), index]))
        for length in options.prompt_lengths
        for index in range(count)
    ]
    data = {"names": ["generated"], "hash": digest_of([sequence for _, _, sequence in items])}
    return Material(items, data, asdict(own) | {"samples": count})


def _sequence(source: AssociativeRecall, length: int, own: ArOptions, key: list[int]) -> Recall:
    rng = np.random.default_rng(key)
    fits = length >= source.least(own.queries)
    distances = own.distances or (source.spread(length, own.queries, rng) if fits else [source.step] * own.queries)
    return source.make(length, distances, rng)


def run(name: str, model: Any, job: Job) -> dict[str, Any]:
    assert job.material is not None
    lengths = {int(length): beyond(model, int(length)) for length in job.options.prompt_lengths}
    asked = [item for item in job.material.items if not lengths[item[0]]]

    def answer(sequence: Recall) -> list[list[float]]:
        return recall_scores(model, sequence, job.options.block)

    sequences = [sequence for _, _, sequence in asked]
    found = answers_in_parts(job, model_key("ar", model, job), sequences, answer, f"ar {name}")
    samples = [
        _sample(length, index, query, int(distance), *scores, job.options.window)
        for (length, index, sequence), rows in zip(asked, found, strict=True)
        for query, (distance, scores) in enumerate(zip(sequence.distances, rows, strict=True))
    ]
    present = {sample["cell"] for sample in samples}
    cells = [cell for length, note in lengths.items() for cell in _cells(length, job.options.window, note)]
    cells = [cell for cell in cells if cell["id"] in present or cell["note"]]
    return sampled_row(cells, samples, job.options.seed, metric="accuracy")


def recall_scores(model: Any, sequence: Recall, block: int = 512) -> list[list[float]]:
    """For each query: 1 if the value is the most likely next token, else 0, and the value's nll in nats."""
    nll, right = token_scores(model, torch.from_numpy(sequence.ids)[None], block)
    return [[float(right[0, at]), float(nll[0, at])] for at in sequence.queries.tolist()]


def _cells(length: int, window: int | None, note: str | None) -> list[dict[str, Any]]:
    bins = distance_bins(window or FIRST_BIN, length)
    return [{"id": f"{length}/{name}", "length": length, "distance": name, "note": note} for name in bins]


def _sample(
    length: int, index: int, query: int, distance: int, right: float, nll: float, window: int | None
) -> dict[str, Any]:
    bins = distance_bins(window or FIRST_BIN, length)
    name = next(name for name, (low, high) in bins.items() if low < distance <= high)
    return {"id": f"{length}/{index}/{query}", "text": f"{length}/{index}", "cell": f"{length}/{name}",
            "score": right, "nll": nll, "distance": distance}  # fmt: skip


def line(row: dict[str, Any]) -> list[str]:
    nll = float(np.mean([sample["nll"] for sample in row["samples"]]))
    return [f"{row['value']:.1%}", span(row["interval"], "{:.1%}"), f"{nll:.2f}", str(row["n"])]


SUITE = Suite(
    prepare=prepare,
    run=run,
    lengths=lambda options: options.prompt_lengths,
    heads=("accuracy", "95 %", "nats", "queries"),
    line=line,
    compare=compare_samples,
    detail=lambda result: cell_table(result, "length/distance", lambda cell: cell["id"]),
)
