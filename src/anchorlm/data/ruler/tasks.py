"""The table of RULER's tasks: how each is written, how long its answer may be, and how it is scored."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from anchorlm.data.ruler import aggregate, niah, qa
from anchorlm.data.ruler.fit import Fitter, Sample, TooShort, Variant
from anchorlm.data.ruler.qa import Library
from anchorlm.data.ruler.words import Essay

QUESTIONS_TRIED = 500  # before a length is called too short for every question


@dataclass(frozen=True)
class World:
    """What prompts are made of: prose, and for the tasks in `libraries` the questions of a file."""

    essay: Essay
    libraries: dict[str, Library] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """variants(world, length): the ways to write a prompt, the fullest first; None for a task that asks questions.

    tokens: of the answer, as published; part: one answer out of several is enough, else each counts its share
    """

    variants: Callable[[World, int], Sequence[Variant]] | None
    tokens: int
    part: bool = False


def _needles(task: str, world: World, length: int) -> Sequence[Variant]:
    return niah.variants(task, world.essay)


TASKS: dict[str, Task] = {
    **{name: Task(partial(_needles, name), niah.PUBLISHED) for name in niah.SETTINGS},
    "vt": Task(lambda world, length: aggregate.tracking_variants(length), aggregate.VT_PUBLISHED),
    "cwe": Task(lambda world, length: aggregate.common_variants(length), aggregate.CWE_PUBLISHED),
    "fwe": Task(lambda world, length: aggregate.frequent_variants(length), aggregate.FWE_PUBLISHED),
    "qa_1": Task(None, qa.PUBLISHED, part=True),
    "qa_2": Task(None, qa.PUBLISHED, part=True),
}
GENERATED = tuple(name for name, task in TASKS.items() if task.variants)


def make(task: str, length: int, count: int, fitter: Fitter, world: World, seed: int = 0) -> list[Sample]:
    """`count` samples of at most `length` tokens, answer included; the first ones are the same for every count.

    At every length they ask for the same. Of a file with fewer questions that fit, so many. Raises TooShort, with the
    least length that works for all, when one does not fit.
    """
    entry, key = TASKS[task], [seed, list(TASKS).index(task)]
    if entry.variants is None:
        return _asked(task, length, count, fitter, world.libraries[task], key)
    variants = entry.variants(world, length)
    made = [_fitted(task, variants, length, [*key, index], fitter, index) for index in range(count)]
    if short := [sample.needed for sample in made if isinstance(sample, TooShort)]:
        raise TooShort(task, length, max(short))
    return [sample for sample in made if isinstance(sample, Sample)]


def _fitted(
    task: str, variants: Sequence[Variant], length: int, key: list[int], fitter: Fitter, index: int
) -> Sample | TooShort:
    try:
        return fitter.fit(task, variants, length, key, TASKS[task].tokens, index)
    except TooShort as error:
        return error


def _asked(task: str, length: int, count: int, fitter: Fitter, library: Library, key: list[int]) -> list[Sample]:
    """Questions in an order drawn at random; one whose own documents do not fit is passed over."""
    found: list[Sample] = []
    needs: list[int] = []
    for tried, index in enumerate(np.random.default_rng(key).permutation(len(library.questions)).tolist()):
        if len(found) == count or (not found and tried == QUESTIONS_TRIED):
            break
        made = _fitted(task, [library.variant(index)], length, [*key, index], fitter, len(found))
        if isinstance(made, Sample):
            found.append(made)
        else:
            needs.append(made.needed)
    if not found:
        raise TooShort(task, length, min(needs))
    return found


def score(task: str, written: str, answers: Sequence[str]) -> float:
    """The published score of one answer, 0 to 1: the share of `answers` in the text, or 1 if any is; case ignored."""
    text = re.sub(r"[\x00-\x1f]", "\n", written.strip()).strip().lower()
    hits = [answer.lower() in text for answer in answers]
    return float(any(hits)) if TASKS[task].part else sum(hits) / len(hits)
