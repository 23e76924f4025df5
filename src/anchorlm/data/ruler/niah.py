"""RULER's retrieval tasks (arXiv 2404.06654, section 3 and appendix B): needles in filler, in prose, among needles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anchorlm.data.filler import NOISE
from anchorlm.data.ruler import words
from anchorlm.data.ruler.fit import Draft, Variant, Write
from anchorlm.data.ruler.words import Essay

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
PROMPT = (
    "{some} special magic {kind} {are} hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What {are_all} the special magic {kind} for {query} mentioned in the provided text? "
    "The special magic {kind} for {query} mentioned in the provided text {are}"
)
DEPTHS = 40  # needles in prose stand at that many evenly spaced depths
PUBLISHED = 128  # tokens of an answer
Draws = Callable[[int, np.random.Generator], list[str]]
KINDS: dict[str, Draws] = {"words": words.names, "numbers": words.numbers, "uuids": words.uuids}


@dataclass(frozen=True)
class Setting:
    """One row of the paper's table of tasks.

    keys: needles with different keys; values: needles for each key; queries: keys that are asked for
    """

    key: str = "words"
    value: str = "numbers"
    haystack: str = "essay"
    keys: int = 1
    values: int = 1
    queries: int = 1


SETTINGS = {
    "niah_single_1": Setting(haystack="noise"),
    "niah_single_2": Setting(),
    "niah_single_3": Setting(value="uuids"),
    "niah_multikey_1": Setting(keys=4),
    "niah_multikey_2": Setting(haystack="needles"),
    "niah_multikey_3": Setting(key="uuids", value="uuids", haystack="needles"),
    "niah_multivalue": Setting(values=4),
    "niah_multiquery": Setting(keys=4, queries=4),
}


def variants(task: str, essay: Essay) -> list[Variant]:
    setting = SETTINGS[task]
    return [Variant(writer(setting, essay), least=0 if setting.haystack == "needles" else 1)]


def writer(setting: Setting, essay: Essay) -> Write:
    """A function that writes the prompt: units are words of prose, lines of filler, or further needles."""

    def write(units: int, rng: np.random.Generator) -> Draft:
        keys = KINDS[setting.key](setting.keys, rng)
        values = KINDS[setting.value](setting.keys * setting.values, rng)
        pairs = [(key, values[i * setting.values + j]) for i, key in enumerate(keys) for j in range(setting.values)]
        asked = [keys[int(i)] for i in rng.choice(setting.keys, setting.queries, replace=False)]
        needles = [_needle(setting, *pairs[int(i)]) for i in rng.permutation(len(pairs))]
        context = _contexts[setting.haystack](setting, needles, units, rng, essay)
        answers = tuple(value for query in asked for key, value in pairs if key == query)
        text = _prompt(setting, context, asked)
        return Draft(text, answers, tuple(needles), ", ".join(answers), {"needles": context.count(NEEDLE[:24])})

    return write


def _needle(setting: Setting, key: str, value: str) -> str:
    return NEEDLE.format(kind=setting.value, key=key, value=value)


def _prompt(setting: Setting, context: str, asked: Sequence[str]) -> str:
    query = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])}, and {asked[-1]}"
    if setting.queries * setting.values == 1:
        form = {"some": "A", "kind": setting.value[:-1], "are": "is", "are_all": "is"}
    else:
        form = {"some": "Some", "kind": setting.value, "are": "are", "are_all": "are all"}
    return PROMPT.format(context=context, query=query, **form)


def _in_noise(setting: Setting, needles: list[str], units: int, rng: np.random.Generator, essay: Essay) -> str:
    lines = [" ".join(NOISE)] * units
    for needle in needles:
        lines.insert(int(rng.integers(len(lines) + 1)), needle)
    return "\n".join(lines)


def _among_needles(setting: Setting, needles: list[str], units: int, rng: np.random.Generator, essay: Essay) -> str:
    keys, values = KINDS[setting.key](units, rng), KINDS[setting.value](units, rng)
    taken = " ".join(needles)
    others = [_needle(setting, k, v) for k, v in zip(keys, values, strict=True) if k not in taken and v not in taken]
    for needle in needles:
        others.insert(int(rng.integers(len(others) + 1)), needle)
    return "\n".join(others)


def _in_prose(setting: Setting, needles: list[str], units: int, rng: np.random.Generator, essay: Essay) -> str:
    sentences = essay.sentences(essay.begin(rng), units)
    depths = np.sort(rng.choice(DEPTHS, len(needles), replace=False)) / (DEPTHS - 1)
    for needle, place in reversed(list(zip(needles, (depths * len(sentences)).astype(int), strict=True))):
        sentences.insert(int(place), needle)
    return " ".join(sentences)


_contexts = {"noise": _in_noise, "needles": _among_needles, "essay": _in_prose}
