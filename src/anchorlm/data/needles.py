"""Facts hidden in real text, and the cue that asks for them: for evaluation and, with other wordings, for training."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlm.core import UserError, suggest
from anchorlm.data.batches import Row, answer_weights, padded_row
from anchorlm.data.filler import running_text, sentence_end
from anchorlm.data.tokens import TokenStore

KINDS = ("number", "word", "uuid")
WHAT = "a needle prompt"


@dataclass(frozen=True)
class Template:
    """`fact` states {value} of {key}; `cue` ends where the value must follow."""

    name: str
    fact: str
    cue: str


TRAIN_TEMPLATES = (
    Template("magic", "The special magic number for {key} is {value}.", "The special magic number for {key} is"),
    Template("code", "Remember that the secret code of {key} is {value}.", "The secret code of {key} is"),
    Template("ticket", "{key} was given ticket {value} at the door.", "At the door {key} was given ticket"),
    Template("account", "The account of {key} is kept under {value}.", "The account of {key} is kept under"),
)
HELD_OUT_TEMPLATES = (
    Template("safe", "To open the safe in {key} you need {value}.", "What you need to open the safe in {key} is"),
    Template("parcel", "The parcel sent to {key} is labelled {value}.", "The label of the parcel sent to {key} is"),
    Template("archive", "In the archive, {key} is filed as {value}.", "The archive has {key} filed as"),
    Template("radio", "The station at {key} transmits on {value}.", "If you listen to the station at {key}, tune to"),
)
TEMPLATES = {template.name: template for template in TRAIN_TEMPLATES + HELD_OUT_TEMPLATES}


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


KEYS = _list(
    "Amsterdam Ankara Athens Berlin Bogota Boston Brussels Cairo Chicago Dublin Geneva Hamburg Havana Helsinki "
    "Istanbul Jakarta Kyoto Lagos Lima Lisbon London Madrid Manila Melbourne Milan Montreal Moscow Mumbai Munich "
    "Nairobi Naples Oslo Paris Prague Riga Rome Seoul Sofia Stockholm Sydney Tehran Tokyo Toronto Tunis Vienna "
    "Warsaw"
)
WORDS = _list(
    "anchor apple arrow basket beacon blanket bottle bridge butter candle carpet castle cherry copper cotton "
    "crystal desert diamond dragon engine feather forest fountain garden ginger hammer harbor island ivory jacket "
    "ladder lantern lemon marble meadow mirror mountain needle orchard oyster paper pepper pillow planet pocket "
    "rabbit ribbon river saddle salmon shadow silver spider summer thunder timber tunnel velvet violin walnut "
    "whistle winter"
)


@dataclass(frozen=True)
class Needle:
    """A fact and the cue that asks for its value, as text and as ids."""

    template: str
    value: str
    fact: str
    cue: str
    fact_ids: list[int]
    cue_ids: list[int]


@dataclass(frozen=True)
class Prompt:
    """ids [T] of the whole prompt, cue included; answer: the text that must follow and its ids.

    `counted` marks the answer's ids that carry content: a leading bare space is not a digit to be guessed.
    shared: tokens before the fact, which are the text's own.
    """

    ids: np.ndarray
    answer: str
    answer_ids: np.ndarray
    counted: np.ndarray
    template: str
    depth: float
    shared: int


def choose_templates(names: str | list[str]) -> list[Template]:
    """ "train", "heldout", "all" or template names."""
    groups = {"train": list(TRAIN_TEMPLATES), "heldout": list(HELD_OUT_TEMPLATES), "all": list(TEMPLATES.values())}
    chosen = []
    for name in [names] if isinstance(names, str) else names:
        if name not in groups and name not in TEMPLATES:
            raise UserError(f"needle template {name!r} is unknown; {suggest(name, [*groups, *TEMPLATES])}")
        chosen += groups.get(name) or [TEMPLATES[name]]
    if not chosen:
        raise UserError(f"needle templates are an empty list; {suggest('', [*groups, *TEMPLATES])}")
    return chosen


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UserError(f"needle kind {kind!r} is unknown; {suggest(kind, KINDS)}")


class Needles:
    """Makes prompts of an exact number of tokens from a store's text.

    tokenizer   must be the one the store was made with
    kind        what is hidden: a 7-digit "number", a "word", or a "uuid"
    """

    def __init__(self, store: TokenStore, tokenizer: Any, kind: str = "number", templates: str | list[str] = "heldout"):
        check_kind(kind)
        self.tokenizer, self.kind, self.templates = tokenizer, kind, choose_templates(templates)
        self.head = [] if store.bos is None else [store.bos]
        self.store = store

    def make(self, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """A prompt of exactly `length` tokens with the fact at `depth` (0 first, 1 last) of a text of its own.

        Raises UserError when the length cannot hold fact and cue, or the text is too short to fill it.
        """
        needle = self._draw(rng)
        return self._prompt(needle, running_text(self.store, self._room(needle, length), rng, WHAT), depth)

    def text(self, length: int, rng: np.random.Generator) -> np.ndarray:
        """Text in which any number of needles can be hidden, one at a time, for prompts of `length` tokens."""
        return running_text(self.store, max(1, length - len(self.head)), rng, WHAT)

    def hide(self, text: np.ndarray, length: int, depth: float, rng: np.random.Generator) -> Prompt:
        """As `make`, in a text from `text`. Up to the fact, all prompts of one text have the same tokens."""
        needle = self._draw(rng)
        return self._prompt(needle, text[: self._room(needle, length)], depth)

    def _draw(self, rng: np.random.Generator) -> Needle:
        template = self.templates[int(rng.integers(len(self.templates)))]
        key, value = KEYS[int(rng.integers(len(KEYS)))], self._value(rng)
        fact, cue = template.fact.format(key=key, value=value), "\n\n" + template.cue.format(key=key)
        return Needle(template.name, value, fact, cue, self._encode(" " + fact), self._encode(cue))

    def _room(self, needle: Needle, length: int) -> int:
        """Tokens of text in a prompt of `length` tokens."""
        room = length - len(self.head) - len(needle.fact_ids) - len(needle.cue_ids)
        if room < 1:
            raise UserError(f"needle length {length} is too short; fact and cue take {length - room} tokens")
        return room

    def _prompt(self, needle: Needle, text: np.ndarray, depth: float) -> Prompt:
        at = sentence_end(text, round(depth * len(text)), self.tokenizer)
        ids = np.concatenate([self.head, text[:at], needle.fact_ids, text[at:], needle.cue_ids]).astype(np.int64)
        answer = self._encode(f"{needle.cue} {needle.value}")[len(needle.cue_ids) :]
        answer_ids = np.asarray(answer, np.int64)
        self._check(ids, needle.fact, needle.cue, answer_ids, needle.value)
        counted = np.asarray([bool(self.tokenizer.decode([int(i)]).strip()) for i in answer_ids])
        return Prompt(ids, needle.value, answer_ids, counted, needle.template, at / len(text), len(self.head) + at)

    def _value(self, rng: np.random.Generator) -> str:
        if self.kind == "number":
            return str(int(rng.integers(1_000_000, 10_000_000)))
        if self.kind == "word":
            return WORDS[int(rng.integers(len(WORDS)))]
        return str(uuid.UUID(bytes=rng.bytes(16), version=4))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def _check(self, ids: np.ndarray, fact: str, cue: str, answer_ids: np.ndarray, value: str) -> None:
        """A prompt that lost its fact would be scored as a failure of the model; refuse it here."""
        text = self.tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False)
        answer = self.tokenizer.decode(answer_ids.tolist(), clean_up_tokenization_spaces=False)
        if fact not in text or not text.endswith(cue) or answer.strip() != value:
            raise UserError(f"tokenizer does not give back the needle {fact!r}; needles cannot be measured with it")


class NeedleSource:
    """Generated needle rows for training, a new one for every index; the answer follows the cue.

    answer_weight   weight of the answer's tokens in the loss
    end_weight      weight of the token after it; all others count 1
    """

    size: int | None = None

    def __init__(self, needles: Needles, length: int, answer_weight: float = 1.0, end_weight: float = 1.0):
        self.needles, self.length, self.answer_weight, self.end_weight = needles, length, answer_weight, end_weight
        names = ",".join(template.name for template in needles.templates)
        self.name = f"needles:{needles.kind}:{names}:{needles.store.content_hash}:{length}"
        self.name += "" if answer_weight == 1 else f":{answer_weight}"
        self.name += "" if end_weight == 1 else f":end {end_weight}"

    def sequence(self, index: int, rng: np.random.Generator) -> Row:
        """One row [length]: text, fact, text, cue, answer, eos, at a random depth."""
        closing = [] if self.needles.store.eos is None else [self.needles.store.eos]
        longest = 40  # no answer is longer; a uuid takes 36 characters
        prompt = self.needles.make(self.length - longest, float(rng.random()), rng)
        ids = np.concatenate([prompt.ids, prompt.answer_ids, closing])[: self.length]
        row = padded_row(ids.astype(np.int64), self.length, self.needles.store.eos or 0)
        answer = slice(len(prompt.ids), len(prompt.ids) + len(prompt.answer_ids))
        return row._replace(weights=answer_weights(self.length, [answer], self.answer_weight, self.end_weight))
