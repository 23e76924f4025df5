"""Multi-query associative recall inside real text: several facts spread over it, then a cue and an answer for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.data import wordings
from anchorlm.data.batches import Row, answer_weights
from anchorlm.data.filler import running_text, sentence_end
from anchorlm.data.tokens import TokenStore
from anchorlm.data.wordings import Wording

MOST_FACTS = 16
MOST_WORDINGS = 3  # in one row: facts that differ in nothing but key and value are what makes recall hard
SEPARATORS = ("\n\n", "\n", " ")
CLOSINGS = (".", "\n", "")


@dataclass(frozen=True)
class Pair:
    """Token ids of a fact as it stands in the text, of the cue that asks for it, and of its answer."""

    fact: list[int]
    cue: list[int]
    answer: list[int]
    closing: list[int]

    @property
    def size(self) -> int:
        return len(self.fact) + len(self.cue) + len(self.answer) + len(self.closing)


class RecallSource:
    """Generated rows of exactly `length` tokens, a new one for every index, whose text comes from `store`.

    store           filler text, made with `tokenizer`
    answer_weight   weight of the answers' tokens in the loss
    end_weight      weight of the token after each answer, which says that it ends there; all others count 1
    sentences       what facts and cues are worded as; for evaluation those that no training row has
    """

    size: int | None = None

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Any,
        length: int,
        answer_weight: float = 1.0,
        end_weight: float = 1.0,
        *,
        sentences: tuple[Wording, ...] = wordings.WORDINGS,
    ):
        self.store, self.tokenizer, self.length, self.sentences = store, tokenizer, length, sentences
        self.answer_weight, self.end_weight = answer_weight, end_weight
        self.head = [] if store.bos is None else [store.bos]
        parts = [wordings.fingerprint(sentences), store.content_hash, store.tokenizer_hash, length, answer_weight]
        parts += [] if end_weight == 1 else [f"end {end_weight}"]
        self.name = ":".join(map(str, ["recall", *parts]))

    def sequence(self, index: int, rng: np.random.Generator) -> Row:
        """One row: text with facts at random places, then all of them asked for in another order.

        Raises UserError when the length cannot hold one fact and its cue, or the text is too short to fill it.
        """
        pairs = self._pairs(rng)
        room = self.length - len(self.head) - sum(pair.size for pair in pairs)
        text = running_text(self.store, room, rng, "a recall row")
        body = self._spread(text, [pair.fact for pair in pairs], rng)
        pieces, at = [self.head, body], len(self.head) + len(body)
        answers: list[slice] = []
        for pair in [pairs[i] for i in rng.permutation(len(pairs))]:
            pieces += [pair.cue, pair.answer, pair.closing]
            answers.append(slice(at + len(pair.cue), at + len(pair.cue) + len(pair.answer)))
            at = answers[-1].stop + len(pair.closing)
        starts = np.arange(self.length) == 0
        weights = answer_weights(self.length, answers, self.answer_weight, self.end_weight)
        return Row(np.concatenate(pieces).astype(np.int64), np.ones(self.length, bool), starts, weights)

    def _pairs(self, rng: np.random.Generator) -> list[Pair]:
        """Facts with different keys, as many as were drawn and half the row holds; at least one."""
        wanted, left = int(rng.integers(1, MOST_FACTS + 1)), (self.length - len(self.head)) // 2
        chosen = rng.choice(len(self.sentences), int(rng.integers(1, MOST_WORDINGS + 1)), replace=False)
        separator, closing = (options[int(rng.integers(len(options)))] for options in (SEPARATORS, CLOSINGS))
        pairs, used = [], set()
        while len(pairs) < wanted:
            wording = self.sentences[int(rng.choice(chosen))]
            key = unused_key(wording.key, used, rng)
            pair = self.pair(wording, key, separator, closing, rng)
            if pair.size > left:
                break
            left -= pair.size
            pairs.append(pair)
        if not pairs:
            raise UserError(f"data.length is {self.length}; a recall row needs about {2 * pair.size} tokens")
        return pairs

    def pair(self, wording: Wording, key: str, separator: str, closing: str, rng: np.random.Generator) -> Pair:
        """Fact, cue and answer for a key; UserError for a tokenizer that joins cue and answer."""
        value = wordings.DRAWS[wording.value](rng)
        cue_text = separator + _sentence(wording.cues[int(rng.integers(len(wording.cues)))].format(key=key))
        cue, asked = self._encode(cue_text), self._encode(f"{cue_text} {value}")
        answer = asked[len(cue) :]
        if (
            asked[: len(cue)] != cue
            or self.tokenizer.decode(answer, clean_up_tokenization_spaces=False).strip() != value
        ):
            raise UserError(f"tokenizer does not keep cue and answer apart in {asked!r}; a recall mix cannot be made")
        fact = self._encode(" " + _sentence(wording.fact.format(key=key, value=value)))
        return Pair(fact, cue, answer, self._encode(closing) if closing else [])

    def _spread(self, text: np.ndarray, facts: list[list[int]], rng: np.random.Generator) -> np.ndarray:
        """The text with the facts put in, in order, at sentence ends near places drawn evenly over it."""
        places = np.sort(rng.integers(0, len(text) + 1, len(facts)))
        ends = np.maximum.accumulate([sentence_end(text, int(place), self.tokenizer) for place in places])
        pieces, begin = [], 0
        for fact, end in zip(facts, ends.tolist(), strict=True):
            pieces += [text[begin:end], fact]
            begin = end
        return np.concatenate([*pieces, text[begin:]])

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def unused_key(kind: str, used: set[str], rng: np.random.Generator) -> str:
    """A key that no fact of the row has yet; there are far more keys of every kind than facts in a row."""
    while (key := wordings.DRAWS[kind](rng)) in used:
        pass
    used.add(key)
    return key


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
