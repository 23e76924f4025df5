"""Documents to be completed, made longer than a window, with the answer beyond it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.data.comprehension import Completion
from anchorlm.data.tokens import leading_bos

PUBLISHED = 48  # tokens of an answer, as in the tasks of Arora et al. (arXiv 2402.18668)
SLACK = 4


@dataclass(frozen=True)
class Asked:
    """One prompt.

    ids [T] int64; distance: tokens from the last place of an answer to the end; room: tokens that may be written
    """

    name: str
    ids: np.ndarray
    answers: tuple[str, ...]
    distance: int
    room: int

    @property
    def digest(self) -> str:
        body = self.ids.astype(np.int64).tobytes() + repr((self.name, self.answers, self.room)).encode()
        return hashlib.sha256(body).hexdigest()[:16]


class Prompts:
    """Prompts of at most `context` tokens, answer included, whose answer stands more than `window` tokens back.

    window: None asks whatever the distance. answer_tokens: None for PUBLISHED, or more where an answer takes more.
    """

    def __init__(self, tokenizer: Any, context: int, window: int | None, answer_tokens: int | None = None):
        self.tokenizer, self.context, self.window = tokenizer, context, window or 0
        self.answer_tokens = answer_tokens
        bos = leading_bos(tokenizer)
        self.head = [] if bos is None else [bos]

    def make(self, task: str, items: Sequence[Completion], count: int, seed: int) -> tuple[list[Asked], Counter[str]]:
        """`count` prompts of items in random order, and how many items were passed over, by reason."""
        rng = np.random.default_rng([seed, self.context])
        found: list[Asked] = []
        passed: Counter[str] = Counter()
        documents = list(dict.fromkeys(item.document for item in items if item.document))
        for index in rng.permutation(len(items)).tolist():
            if len(found) == count:
                break
            made = self._one(f"{task}/{index}", items[index], documents, rng)
            if isinstance(made, str):
                passed[made] += 1
            else:
                found.append(made)
        return found, passed

    def _one(self, name: str, item: Completion, documents: list[str], rng: np.random.Generator) -> Asked | str:
        room = self._room(name, item)
        if not _holds(item.text, item.answers):
            return "without the answer in the text"
        text = self._lengthened(item, documents, room, rng) if item.document else item.text
        ids = [*self.head, *self._encode(text)]
        if len(ids) + room > self.context:
            return f"longer than {self.context:,} tokens"
        distance = self._distance(text, item.answers)
        if distance <= self.window:
            return f"with the answer within the window of {self.window:,} tokens"
        return Asked(name, np.asarray(ids, np.int64), item.answers, distance, room)

    def _room(self, name: str, item: Completion) -> int:
        needed = min(len(self._encode(" " + answer)) for answer in item.answers)
        if self.answer_tokens is None:
            return max(PUBLISHED, needed + SLACK)
        if needed > self.answer_tokens:
            raise UserError(
                f"recall {name}: the answer takes {needed} tokens, "
                f"and recall.answer_tokens lets {self.answer_tokens} be written"
            )
        return self.answer_tokens

    def _lengthened(self, item: Completion, documents: list[str], room: int, rng: np.random.Generator) -> str:
        """The item's document among others that hold no answer, as many as fit; enough of them after it."""
        cue = item.text[len(item.document) :]
        left = self.context - room - len(self.head) - len(self._encode(item.text))
        others: list[tuple[str, int]] = []
        for index in rng.permutation(len(documents)):
            text = documents[int(index)]
            size = len(self._encode(text + "\n\n"))
            if left < 2 * SLACK:
                break
            if size < left and text != item.document and not _holds(text, item.answers):
                others.append((text, size))
                left -= size + 1
        behind = np.cumsum([0, *(size for _, size in others)])  # tokens after the document, by documents after it
        fits = np.flatnonzero(behind > self.window)
        after = int(rng.choice(fits)) if len(fits) else len(others)
        texts = [text for text, _ in others]
        texts = [*texts[after:], item.document, *texts[:after]]
        return "\n\n".join(texts) + ("\n\n" if after else "") + cue.lstrip("\n" if after else "")

    def _distance(self, text: str, answers: Sequence[str]) -> int:
        last = max(text.lower().rfind(answer.lower()) for answer in answers)
        return len(self._encode(text[last:]))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _holds(text: str, answers: Sequence[str]) -> bool:
    return any(answer.lower() in text.lower() for answer in answers)


def contains(written: str, answers: Sequence[str]) -> float:
    """1 if any answer stands in the text, case ignored: the published score."""
    return float(_holds(written, answers))
