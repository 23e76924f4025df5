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
MOST_WORDS = 4096  # the first in a vocabulary, which are the commonest
BEFORE_KEY, BEFORE_VALUE = "\n", ":"  # in bare pairs of words even a good model does not see that they are pairs


@dataclass(frozen=True)
class Recall:
    """One sequence.

    ids        [T] int64, bos first where the tokenizer puts one
    queries    [Q] int64: right after each of these places stands the value of a pair, for the second time
    distances  [Q] int64: tokens back to the same place of the pair where it stood first
    """

    ids: np.ndarray
    queries: np.ndarray
    distances: np.ndarray

    @cached_property
    def digest(self) -> str:
        parts = (self.ids, self.queries, self.distances)
        return hashlib.sha256(b"".join(part.astype(np.int64).tobytes() for part in parts)).hexdigest()[:16]


class AssociativeRecall:
    """Generates sequences for one tokenizer: lines such as `apple: river`.

    Keys and values are words of one token, drawn at random. A pair that is asked stands in two lines; its words stand
    nowhere else, so that nothing but recall gives the answer. All other lines are filler. The task is that of Arora et
    al. (arXiv 2312.04927), with a query at each of the asked distances.

    step: tokens of a line; distances are multiples of it
    """

    def __init__(self, tokenizer: Any):
        bos = leading_bos(tokenizer)
        self.head = [] if bos is None else [bos]
        self.marks = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (BEFORE_KEY, BEFORE_VALUE)]
        self.words = np.setdiff1d(single_tokens(tokenizer), sum(self.marks, []))
        self.step = sum(map(len, self.marks)) + 2

    def least(self, queries: int) -> int:
        """Tokens of the shortest sequence with so many queries."""
        return len(self.head) + 2 * queries * self.step

    def spread(self, length: int, queries: int, rng: np.random.Generator) -> np.ndarray:
        """[queries] int64: distances from the next line to the whole length, one in each of as many equal ratios."""
        edges = np.geomspace(1, max(1, self._lines(length) - 1), queries + 1)
        return np.array(
            [self.step * round(float(rng.uniform(*pair))) for pair in zip(edges[:-1], edges[1:], strict=True)]
        )

    def make(self, length: int, distances: Sequence[int], rng: np.random.Generator) -> Recall:
        """A sequence of `length` tokens, rounded down to whole lines, with one query for each distance in tokens.

        Raises UserError when the length cannot hold them.
        """
        back = np.asarray(distances, np.int64)
        self._check(length, back)
        sources = _places(self._lines(length), back // self.step, rng)
        drawn = rng.permutation(self.words)
        count = len(back)
        words = rng.choice(drawn[2 * count :], (2, self._lines(length)))
        for line in (sources, sources + back // self.step):
            words[:, line] = drawn[:count], drawn[count : 2 * count]
        body = self._written(*words)
        queries = len(self.head) + self.step * (sources + back // self.step + 1) - 2
        order = np.argsort(queries)
        return Recall(np.concatenate([self.head, body]).astype(np.int64), queries[order], back[order])

    def _lines(self, length: int) -> int:
        return (length - len(self.head)) // self.step

    def _written(self, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        before, between = (np.tile(np.asarray(mark, np.int64), (len(keys), 1)) for mark in self.marks)
        return np.concatenate([before, keys[:, None], between, values[:, None]], axis=1).ravel()

    def _check(self, length: int, distances: np.ndarray) -> None:
        count, farthest = len(distances), self.step * (self._lines(length) - 1)
        if not count or length < self.least(count):
            raise UserError(f"length {length} is too short for {count} queries; it needs {self.least(max(count, 1))}")
        if (distances % self.step).any() or distances.min() < self.step or distances.max() > farthest:
            raise UserError(
                f"distances are {distances.tolist()}; at length {length} they must be multiples of {self.step}, the "
                f"tokens of a line, up to {farthest}"
            )
        if len(self.words) < 3 * count:
            raise UserError(f"the tokenizer has {len(self.words)} words of one token; {count} queries need {3 * count}")


def _places(lines: int, gaps: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The line [Q] where each pair first stands, so that no two pairs or queries share one; the widest gaps first."""
    for _ in range(20):
        free, found = np.ones(lines, bool), np.zeros(len(gaps), np.int64)
        for which in np.argsort(-gaps, kind="stable"):
            gap = int(gaps[which])
            fits = np.flatnonzero(free[:-gap] & free[gap:])
            if not len(fits):
                break
            found[which] = rng.choice(fits)
            free[[found[which], found[which] + gap]] = False
        else:
            return found
    raise UserError(f"{len(gaps)} queries {gaps.tolist()} lines back do not fit into {lines} lines")


def single_tokens(tokenizer: Any) -> np.ndarray:
    """Ids [n] of the first MOST_WORDS lower-case words of three letters or more that are one token with their space.

    Of a tokenizer with fewer than FEWEST_WORDS such words, every id that is not special.
    """
    special = set(tokenizer.all_special_ids)
    plain = [index for index in range(len(tokenizer)) if index not in special]
    texts = tokenizer.batch_decode([[index] for index in plain], clean_up_tokenization_spaces=False)
    words = [index for index, text in zip(plain, texts, strict=True) if re.fullmatch(r" [a-z]{3,}", text)]
    return np.asarray(words[:MOST_WORDS] if len(words) >= FEWEST_WORDS else plain, np.int64)
