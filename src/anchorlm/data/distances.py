"""Associative recall at known distances: each fact stands so far before its answer as one wants, in running text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorlm.core import UserError
from anchorlm.data.filler import running_text
from anchorlm.data.recall import Pair, RecallSource, unused_key

TRIES = 200  # draws of distances until no two facts overlap


@dataclass(frozen=True)
class Query:
    """targets [n]: places of the answer's tokens; distance: tokens from the fact's last one to the answer's first."""

    targets: np.ndarray
    distance: int


@dataclass(frozen=True)
class RecallText:
    """ids [T] int64, and what is asked in it."""

    ids: np.ndarray
    queries: tuple[Query, ...]


def recall_text(source: RecallSource, bins: Sequence[tuple[int, int]], rng: np.random.Generator) -> RecallText:
    """A text of source.length tokens that at its end asks for one fact in each bin of distances (above, up to].

    A fact of a bin that begins at 0 lies in it with its first token too. Raises UserError when the facts have no room.
    """
    pairs = _pairs(source, len(bins), rng)
    end = source.length - sum(len(p.cue) + len(p.answer) + len(p.closing) for p in pairs)
    answers = _answer_places(pairs, end)
    lasts = _places(source, pairs, answers, bins, end, rng)
    body = np.full(end, -1, np.int64)
    body[: len(source.head)] = source.head
    for pair, last in zip(pairs, lasts, strict=True):
        body[last + 1 - len(pair.fact) : last + 1] = pair.fact
    body[body < 0] = running_text(source.store, int((body < 0).sum()), rng, "a recall text")
    asked = [np.asarray([*pair.cue, *pair.answer, *pair.closing], np.int64) for pair in pairs]
    queries = [
        Query(np.arange(at, at + len(pair.answer)), at - last)
        for pair, at, last in zip(pairs, answers, lasts, strict=True)
    ]
    return RecallText(np.concatenate([body, *asked]), tuple(queries))


def _pairs(source: RecallSource, count: int, rng: np.random.Generator) -> list[Pair]:
    """Facts with different keys."""
    used: set[str] = set()
    wordings = [source.sentences[int(i)] for i in rng.integers(len(source.sentences), size=count)]
    return [source.pair(wording, unused_key(wording.key, used, rng), "\n\n", ".", rng) for wording in wordings]


def _answer_places(pairs: Sequence[Pair], end: int) -> list[int]:
    """Where each answer begins when the questions follow one another from `end` on."""
    places = []
    for pair in pairs:
        places.append(end + len(pair.cue))
        end += len(pair.cue) + len(pair.answer) + len(pair.closing)
    return places


def _places(
    source: RecallSource,
    pairs: Sequence[Pair],
    answers: Sequence[int],
    bins: Sequence[tuple[int, int]],
    end: int,
    rng: np.random.Generator,
) -> list[int]:
    """Where each fact's last token stands, before `end` and after the head, without overlap."""
    spans = []
    for pair, answer, (low, high) in zip(pairs, answers, bins, strict=True):
        high = high if low else high - len(pair.fact)
        spans.append((max(answer - high, len(source.head) + len(pair.fact) - 1), min(answer - low, end) - 1))
    for _ in range(TRIES if all(first <= last for first, last in spans) else 0):
        lasts = [int(rng.integers(first, last + 1)) for first, last in spans]
        held = sorted((last + 1 - len(pair.fact), last + 1) for pair, last in zip(pairs, lasts, strict=True))
        if all(a[1] <= b[0] for a, b in zip(held, held[1:], strict=False)):
            return lasts
    needed = sum(pair.size for pair in pairs)
    raise UserError(
        f"--context is {source.length}; a fact in each of {len(bins)} ranges of distance, the first up to "
        f"{bins[0][1]}, has no room with its question ({needed} tokens in all): take a longer context or a wider window"
    )
