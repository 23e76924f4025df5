"""A prompt of any size fitted into a number of tokens, answer included, and checked to hold what it asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.data.tokens import leading_bos

SLACK = 4  # tokens beyond a written answer, for a leading "the" or a quote
CLOSE = 8  # a prompt that leaves so few tokens free is full


@dataclass(frozen=True)
class Draft:
    """A prompt as text. `answers` follow it, `holds` must stand in it, `says` is how a full answer reads."""

    text: str
    answers: tuple[str, ...]
    holds: tuple[str, ...]
    says: str
    facts: dict[str, Any] = field(default_factory=dict)


Write = Callable[[int, np.random.Generator], Draft]  # how many units of haystack, what is drawn at random


@dataclass(frozen=True)
class Variant:
    """One way to write a task's prompt, with at least `least` and at most `most` units of haystack."""

    write: Write
    least: int = 1
    most: int = 10**9


@dataclass(frozen=True)
class Sample:
    """One fitted prompt.

    ids [T] int64, bos included where the tokenizer puts one; room: tokens that may be written after it;
    length: T + room is at most this; index: its number among the samples of one task and length.
    """

    task: str
    length: int
    index: int
    ids: np.ndarray
    answers: tuple[str, ...]
    room: int
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.task}/{self.length}/{self.index}"

    @property
    def digest(self) -> str:
        """Changes with the prompt, the answers and the room for them."""
        body = self.ids.astype(np.int64).tobytes() + repr((self.name, self.answers, self.room)).encode()
        return hashlib.sha256(body).hexdigest()[:16]


class TooShort(UserError):
    """No variant fits; `needed` tokens would."""

    def __init__(self, task: str, length: int, needed: int):
        super().__init__(f"ruler task {task} needs at least {needed} tokens here; the length is {length}")
        self.needed = needed


class Fitter:
    """Fits prompts with one tokenizer.

    answer_tokens: tokens for an answer, whatever the task; None: as published, at most an eighth of the length, and
        never fewer than the answer itself takes.
    """

    def __init__(self, tokenizer: Any, answer_tokens: int | None = None):
        self.tokenizer, self.answer_tokens = tokenizer, answer_tokens
        bos = leading_bos(tokenizer)
        self.head = [] if bos is None else [bos]

    def fit(
        self, task: str, variants: Sequence[Variant], length: int, key: Sequence[int], published: int, index: int = 0
    ) -> Sample:
        """The fullest prompt of the first variant that fits, the same for the same `key`. Raises TooShort."""
        needs = []
        for variant in variants:
            draft, ids, room = self._write(task, variant, variant.least, length, key, published)
            if len(ids) + room <= length:
                draft, ids, room = self._fill(task, variant, length, key, published)
                self._check(task, draft, ids)
                return Sample(task, length, index, np.asarray(ids, np.int64), draft.answers, room, draft.facts)
            needs.append(self._least(task, draft, len(ids), length, published))
        raise TooShort(task, length, min(needs))

    def _least(self, task: str, draft: Draft, size: int, length: int, published: int) -> int:
        """The shortest length that the draft fits into; the room for its answer grows with the length."""
        return next(n for n in count(length) if size + self._room(task, draft, n, published) <= n)

    def _write(
        self, task: str, variant: Variant, units: int, length: int, key: Sequence[int], published: int
    ) -> tuple[Draft, list[int], int]:
        draft = variant.write(units, np.random.default_rng([*key]))
        return draft, [*self.head, *self._encode(draft.text)], self._room(task, draft, length, published)

    def _fill(self, task: str, variant: Variant, length: int, key: Sequence[int], published: int) -> Any:
        """The draft with as many units as fit: bracketed by doubling, then narrowed by the tokens a unit takes."""

        def at(units: int) -> Any:
            return self._write(task, variant, units, length, key, published)

        def size(made: Any) -> int:
            return len(made[1]) + made[2]

        low, high = variant.least, variant.most + 1
        best = at(low)
        step = max(1, low)
        while low + step < high and length - size(best) > CLOSE:
            made = at(low + step)
            if size(made) > length:
                high = low + step
                break
            low, best, step = low + step, made, 2 * step
        while high - low > 1 and length - size(best) > CLOSE:
            middle = (low + high) // 2
            made = at(middle)
            low, high, best = (middle, high, made) if size(made) <= length else (low, middle, best)
        return best

    def _needed(self, draft: Draft) -> int:
        return len(self._encode(" " + draft.says)) + SLACK

    def _room(self, task: str, draft: Draft, length: int, published: int) -> int:
        needed = self._needed(draft)
        if self.answer_tokens is None:
            return max(needed, min(published, length // 8))
        if needed - SLACK > self.answer_tokens:
            raise UserError(
                f"ruler task {task}: the answer takes {needed - SLACK} tokens, "
                f"and ruler.answer_tokens lets {self.answer_tokens} be written"
            )
        return self.answer_tokens

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _check(self, task: str, draft: Draft, ids: list[int]) -> None:
        """A prompt that lost its needle would be scored as a failure of the model; refuse it here."""
        text = self.tokenizer.decode(ids[len(self.head) :], clean_up_tokenization_spaces=False)
        lost = [part for part in draft.holds if part not in text]
        if lost or not text.rstrip().endswith(draft.text[-40:].rstrip()):
            raise UserError(
                f"ruler task {task}: the tokenizer does not give back {(lost or [draft.text[-40:]])[0]!r}; "
                "it cannot be measured with it"
            )
