"""The six MAD tasks (Poli et al., arXiv 2403.17844) as rows of tokens, drawn from a numpy generator.

Vocabularies, counts and scored positions are those of the published generators (athms/mad-lab), with their baseline
sizes as defaults; where a task departs from them, its docstring says so. Shapes: B rows, T tokens, P pairs, K keys.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from anchorlm.core import UserError
from anchorlm.settings import Strict

IGNORE = -100  # a position that is neither trained nor scored
MAP_SEED = 12345  # of the facts to be memorised: the same in every row, for every model and seed

Motif = tuple[int, ...]
Pair = tuple[Motif, Motif, bool]  # key, value, whether the key was shown before


class Instances(NamedTuple):
    """Rows of a task, each array [B, T]: the input, what training asks for at each position, and what is scored."""

    inputs: np.ndarray
    targets: np.ndarray
    answers: np.ndarray


class Task(Strict):
    """length: tokens of a row. vocab: all tokens, special ones and noise included."""

    pooled: ClassVar[bool] = False  # whether the whole row is read off the state of its last token
    paired: ClassVar[bool] = False  # whether tokens come in twos
    length: int = Field(128, ge=1)
    vocab: int = Field(16, ge=1)

    def least(self) -> dict[str, int]:
        """The smallest value of each field with which there is something to learn."""
        raise NotImplementedError

    def check(self, name: str, length: int = 0) -> Task:
        """Raise UserError when a field is too small, or the row is shorter than `length`."""
        least = self.least()
        least["length"] = max(least["length"], length)
        for field, minimum in least.items():
            if getattr(self, field) < minimum:
                raise UserError(f"task {name}: {field} is {getattr(self, field)}; at least {minimum} is needed here")
        if self.paired and self.length % 2:
            raise UserError(f"task {name}: length is {self.length}; it must be even, since tokens come in pairs")
        return self

    def make(self, rng: np.random.Generator, rows: int, train: bool = True) -> Instances:
        """So many rows; `train` is False for those that a model is tested on."""
        raise NotImplementedError

    def chance(self) -> float:
        """Accuracy of a guess that knows the vocabularies and nothing of the row."""
        raise NotImplementedError


class Recall(Task):
    """In-context recall: pairs of key and value. A key seen before has the value it had; that value is scored.

    With `noise` this share of the pairs is two tokens of a vocabulary of their own. As published, training asks for
    every next token, and the last pair is one whose key was shown.
    """

    paired: ClassVar[bool] = True
    noise_vocab: int = Field(0, ge=0)
    noise: float = Field(0.0, ge=0, lt=1)

    def split(self) -> tuple[int, int]:
        """Numbers of keys and of values: tokens 0 to K - 1, then the values, then noise."""
        kept = self.vocab - self.noise_vocab
        return kept // 2, kept - kept // 2

    def least(self) -> dict[str, int]:
        return {"length": 4, "noise_vocab": int(self.noise > 0), "vocab": self.noise_vocab + 4}

    def make(self, rng: np.random.Generator, rows: int, train: bool = True) -> Instances:
        keys, values = self.split()
        pairs = self.length // 2
        key = rng.integers(keys, size=(rows, pairs))
        real = rng.random((rows, pairs)) >= self.noise
        real[np.arange(rows), rng.integers(pairs - 1, size=rows)] = True  # one pair at least to ask for
        real[:, -1] = True
        seen = self._ask(rng, key, real)
        value = np.take_along_axis(rng.integers(keys, keys + values, (rows, keys)), key, 1)
        noise = rng.integers(keys + values, keys + values + max(1, self.noise_vocab), (rows, pairs, 2))
        stream = np.where(real[..., None], np.stack([key, value], -1), noise).reshape(rows, -1)
        answers = np.stack([np.full_like(value, IGNORE), np.where(seen, value, IGNORE)], -1).reshape(rows, -1)
        return Instances(stream[:, :-1], stream[:, 1:], answers[:, 1:])

    @staticmethod
    def _ask(rng: np.random.Generator, key: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Which pairs [B, P] repeat a key; the last key of each row is set to one of those shown."""
        every, shown = np.arange(len(key)), np.zeros((len(key), key.max() + 1), bool)
        seen = np.zeros_like(real)
        for p in range(key.shape[1] - 1):
            seen[:, p] = real[:, p] & shown[every, key[:, p]]
            shown[every, key[:, p]] |= real[:, p]
        key[:, -1] = (shown * (1 + rng.random(shown.shape))).argmax(1)
        seen[:, -1] = True
        return seen

    def chance(self) -> float:
        return 1 / self.split()[1]


class NoisyRecall(Recall):
    """In-context recall with noise between the pairs."""

    vocab: int = Field(32, ge=1)
    noise_vocab: int = Field(16, ge=0)
    noise: float = Field(0.2, ge=0, lt=1)


class FuzzyRecall(Task):
    """In-context recall of keys and values of several tokens, no token twice in one of them.

    key, value: longest of each; lengths are drawn alike, in tests keys are the longest. Rows are filled up on the left
    with the last token of the vocabulary. The published generator now and then leaves out the pair that it asks for
    at the end; here it is always shown.
    """

    key: int = Field(3, ge=1)
    value: int = Field(3, ge=1)

    def split(self) -> tuple[int, int]:
        """Numbers of tokens for keys and for values."""
        kept = self.vocab - 1
        return kept // 2, kept - kept // 2

    def least(self) -> dict[str, int]:
        return {"length": 2 * (self.key + self.value) + 1, "vocab": 2 * max(self.key, self.value, 2) + 1}

    def make(self, rng: np.random.Generator, rows: int, train: bool = True) -> Instances:
        stream = np.full((rows, self.length + 1), self.vocab - 1)
        answers = np.full_like(stream, IGNORE)
        for row in range(rows):
            end = self.length + 1
            for key, value, seen in reversed(self._pairs(rng, train)):
                begin = end - len(key) - len(value)
                stream[row, begin:end] = key + value
                if seen:
                    answers[row, begin + len(key) : end] = value
                end = begin
        return Instances(stream[:, :-1], stream[:, 1:], answers[:, 1:])

    def _pairs(self, rng: np.random.Generator, train: bool) -> list[Pair]:
        """The pairs of one row; the last one asks for a key that was shown."""
        probe, asked = self._key(rng, train), self._value(rng)
        known, order, size = {probe: asked}, [], 0
        longest = self.key + self.value
        end = self.length - len(probe) - len(asked) - longest
        at = rng.integers(max(1, end - longest + 1))  # from where the probe may stand; the loop always gets there
        shown: set[Motif] = set()
        while size < end:
            key = probe if size >= at and probe not in shown else self._key(rng, train)
            value = known.setdefault(key, self._value(rng))
            order.append((key, value, key in shown))
            shown.add(key)
            size += len(key) + len(value)
        return [*order, (probe, asked, True)]

    def _key(self, rng: np.random.Generator, train: bool) -> Motif:
        return self._motif(rng, 0, self.split()[0], self.key if not train else rng.integers(self.key) + 1)

    def _value(self, rng: np.random.Generator) -> Motif:
        return self._motif(rng, *self.split(), rng.integers(self.value) + 1)

    @staticmethod
    def _motif(rng: np.random.Generator, first: int, count: int, size: int) -> Motif:
        return tuple((first + rng.permutation(count)[:size]).tolist())

    def chance(self) -> float:
        """A value's own tokens are all different, which a guess may know too."""
        values, sizes = self.split()[1], range(1, self.value + 1)
        return sum(1 / (values - j) for size in sizes for j in range(size)) / sum(sizes)


class Memorisation(Task):
    """Facts that are the same in every row: a key, then a token that asks for its value. Nothing is new in a row."""

    paired: ClassVar[bool] = True
    length: int = Field(32, ge=1)
    vocab: int = Field(256, ge=1)

    def facts(self) -> np.ndarray:
        """The value [K] of every key; no two have the same."""
        keys = (self.vocab - 1) // 2
        return keys + np.random.default_rng(MAP_SEED).permutation(self.vocab - 1 - keys)[:keys]

    def least(self) -> dict[str, int]:
        return {"length": 2, "vocab": 5}

    def make(self, rng: np.random.Generator, rows: int, train: bool = True) -> Instances:
        facts = self.facts()
        key = rng.integers(len(facts), size=(rows, self.length // 2))
        inputs = np.stack([key, np.full_like(key, self.vocab - 1)], -1).reshape(rows, -1)
        answers = np.stack([np.full_like(key, IGNORE), facts[key]], -1).reshape(rows, -1)
        return Instances(inputs, answers, answers)

    def chance(self) -> float:
        return 1 / (self.vocab - 1 - (self.vocab - 1) // 2)


class SelectiveCopying(Task):
    """Tokens among blanks, then a token that asks for them in their order, one at each of the blanks that follow.

    As published, each blank stands before one of the tokens, so that the last of them is followed by the question.
    """

    length: int = Field(256, ge=1)
    copy_tokens: int = Field(16, ge=1)

    def least(self) -> dict[str, int]:
        return {"length": 2 * self.copy_tokens + 2, "vocab": 4}

    def make(self, rng: np.random.Generator, rows: int, train: bool = True) -> Instances:
        count, (blank, ask) = self.copy_tokens, (self.vocab - 2, self.vocab - 1)
        tokens = rng.integers(blank, size=(rows, count))
        before = rng.integers(count, size=(rows, self.length - 2 * count - 1, 1))
        place = np.arange(count) + (before <= np.arange(count)).sum(1)  # [B, count]
        inputs = np.full((rows, self.length), blank)
        np.put_along_axis(inputs, place, tokens, 1)
        inputs[:, -count - 1] = ask
        answers = np.full_like(inputs, IGNORE)
        answers[:, -count:] = tokens
        return Instances(inputs, answers, answers)

    def chance(self) -> float:
        return 1 / (self.vocab - 2)


class Compression(Task):
    """Random tokens and a last one from whose state alone all of them are told. The last one itself is not scored."""

    pooled: ClassVar[bool] = True
    length: int = Field(32, ge=1)

    def least(self) -> dict[str, int]:
        return {"length": 2, "vocab": 3}

    def make(self, rng: np.random.Generator, rows: int, train: bool = True) -> Instances:
        inputs = rng.integers(self.vocab - 1, size=(rows, self.length))
        inputs[:, -1] = self.vocab - 1
        answers = inputs.copy()
        answers[:, -1] = IGNORE
        return Instances(inputs, inputs, answers)

    def chance(self) -> float:
        return 1 / (self.vocab - 1)


TASKS: dict[str, type[Task]] = {
    "in-context-recall": Recall,
    "noisy-recall": NoisyRecall,
    "fuzzy-recall": FuzzyRecall,
    "memorisation": Memorisation,
    "selective-copying": SelectiveCopying,
    "compression": Compression,
}
