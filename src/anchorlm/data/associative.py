"""Multi-query associative recall at any length: pairs of a key and a value, each asked once, at a known distance."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.data.tokens import leading_bos

FEWEST_WORDS = 512  # single-token words below which any token may stand for a key
NEAREST = 2  # tokens between a pair and its query: they stand side by side


@dataclass(frozen=True)
class Recall:
    """One sequence.

    ids        [T] int64, bos first where the tokenizer puts one
    queries    [Q] int64: at each of these places stands a key, and right after it its value, for the second time
    distances  [Q] int64: tokens back to the place where the key stood first, with the same value after it
    """

    ids: np.ndarray
    queries: np.ndarray
    distances: np.ndarray

    @cached_property
    def digest(self) -> str:
        parts = (self.ids, self.queries, self.distances)
        return hashlib.sha256(b"".join(part.astype(np.int64).tobytes() for part in parts)).hexdigest()[:16]


class AssociativeRecall:
    """Generates sequences for one tokenizer.

    Keys, values and filler are single-token words, drawn at random; in a sequence no key or value stands anywhere but
    in its pair, so that nothing but recall gives the answer. The task is that of Arora et al. (arXiv 2312.04927), with
    a query at each of the asked distances.
    """

    def __init__(self, tokenizer: Any):
        bos = leading_bos(tokenizer)
        self.head = [] if bos is None else [bos]
        self.words = single_tokens(tokenizer)

    def least(self, queries: int) -> int:
        """Tokens of the shortest sequence with so many queries."""
        return len(self.head) + 4 * queries

    def spread(self, length: int, queries: int, rng: np.random.Generator) -> np.ndarray:
        """[queries] int64: distances from next to it to the whole length, one in each of as many equal ratios."""
        farthest = 2 * ((length - len(self.head)) // 2 - 1)
        edges = np.geomspace(NEAREST, max(NEAREST, farthest), queries + 1)
        return np.array([2 * round(float(rng.uniform(*pair)) / 2) for pair in zip(edges[:-1], edges[1:], strict=True)])

    def make(self, length: int, distances: Sequence[int], rng: np.random.Generator) -> Recall:
        """A sequence of `length` tokens with one query for each distance, in tokens and even.

        Raises UserError when the length cannot hold them.
        """
        back = np.asarray(distances, np.int64)
        self._check(length, back)
        slots = (length - len(self.head)) // 2
        sources = _places(slots, back // 2, rng)
        drawn = rng.permutation(self.words)
        count = len(back)
        keys, values, filler = drawn[:count], drawn[count : 2 * count], drawn[2 * count :]
        body = rng.choice(filler, length - len(self.head))
        for place in (2 * sources, 2 * sources + back):
            body[place], body[place + 1] = keys, values
        order = np.argsort(2 * sources + back)
        queries = (len(self.head) + 2 * sources + back)[order]
        return Recall(np.concatenate([self.head, body]).astype(np.int64), queries, back[order])

    def _check(self, length: int, distances: np.ndarray) -> None:
        count, farthest = len(distances), 2 * ((length - len(self.head)) // 2 - 1)
        if not count or length < self.least(count):
            raise UserError(f"length {length} is too short for {count} queries; it needs {self.least(max(count, 1))}")
        if (distances % 2).any() or distances.min() < NEAREST or distances.max() > farthest:
            raise UserError(
                f"distances are {distances.tolist()}; at length {length} they must be even, "
                f"from {NEAREST} to {farthest}"
            )
        if len(self.words) < 3 * count:
            raise UserError(f"the tokenizer has {len(self.words)} words of one token; {count} queries need {3 * count}")


def _places(slots: int, gaps: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The slot [Q] where each pair first stands, so that no two pairs or queries share one; the widest gaps first."""
    for _ in range(20):
        free, found = np.ones(slots, bool), np.zeros(len(gaps), np.int64)
        for which in np.argsort(-gaps, kind="stable"):
            gap = int(gaps[which])
            fits = np.flatnonzero(free[:-gap] & free[gap:])
            if not len(fits):
                break
            found[which] = rng.choice(fits)
            free[[found[which], found[which] + gap]] = False
        else:
            return found
    raise UserError(f"{len(gaps)} queries at the distances {(2 * gaps).tolist()} do not fit into {2 * slots} tokens")


def single_tokens(tokenizer: Any) -> np.ndarray:
    """Ids [n] of lower-case words of three letters or more that are one token with the space before them.

    Of a tokenizer with fewer than FEWEST_WORDS such words, every id that is not special.
    """
    special = set(tokenizer.all_special_ids)
    plain = [index for index in range(len(tokenizer)) if index not in special]
    texts = tokenizer.batch_decode([[index] for index in plain], clean_up_tokenization_spaces=False)
    words = [index for index, text in zip(plain, texts, strict=True) if re.fullmatch(r" [a-z]{3,}", text)]
    return np.asarray(words if len(words) >= FEWEST_WORDS else plain, np.int64)
