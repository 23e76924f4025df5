"""Accuracy on sets of questions: acc, acc_norm and last-word perplexity as lm-evaluation-harness defines them.

acc       the choice with the highest log-likelihood is the right one; for a last word: it is what greedy writing gives
acc_norm  the same with each log-likelihood divided by the characters of its choice
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anchorlm.data.layouts import Question
from anchorlm.data.questions import TaskSet
from anchorlm.data.tokens import tokenizer_fingerprint
from anchorlm.eval.choices import Pair, PairEncoder, score_pairs
from anchorlm.eval.parts import Parts, model_digest
from anchorlm.eval.stats import bootstrap_cells, bootstrap_ratio, sign_flip, wilson
from anchorlm.reading import position_limit

QUESTIONS_PER_PART = 32  # after which an interrupted run can go on; those of a subject share their shots
Tell = Callable[[int, int], None]  # questions done, questions in all


def measure(
    model: Any,
    tokenizer: Any,
    sets: Sequence[TaskSet],
    *,
    pooled: bool = False,
    parts: Parts | None = None,
    seed: int = 0,
    block: int = 512,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Accuracy of `model` on each task and over all: the mean of the tasks, or of all questions when `pooled`.

    A context beyond the positions of the model loses its beginning; such questions are counted as `truncated`.
    """
    encode = PairEncoder(tokenizer, position_limit(model))
    key = {"suite": "questions", "model": model_digest(model), "tokenizer": tokenizer_fingerprint(tokenizer)}
    total, answers = sum(len(one.questions) for one in sets), {}
    for one in sets:
        answers[one.name] = found = []
        for begin in range(0, len(one.questions), QUESTIONS_PER_PART):
            part = one.questions[begin : begin + QUESTIONS_PER_PART]
            own = key | {"words": one.words, "questions": hashlib.sha256(repr(part).encode()).hexdigest()}
            found += (parts or Parts(None)).run(own, lambda p=part, w=one.words: ask(model, encode, p, w, block))
            if tell:
                tell(sum(map(len, answers.values())), total)
    return summary(sets, answers, pooled=pooled, seed=seed)


def ask(
    model: Any, encode: PairEncoder, questions: Sequence[Question], words: bool = False, block: int = 512
) -> list[dict[str, Any]]:
    """The log-likelihoods of each question's choices and what follows from them. words: see `TaskSet`."""
    groups = [[encode(*texts) for texts in question.pairs()] for question in questions]
    scores = iter(score_pairs(model, [pair for group in groups for pair in group], block))
    return [
        _answer(question, group, [next(scores) for _ in group], words)
        for question, group in zip(questions, groups, strict=True)
    ]


def _answer(question: Question, group: list[Pair], scores: list[tuple[float, bool]], words: bool) -> dict[str, Any]:
    likely = np.array([score for score, _ in scores])
    longest = max(len(pair.context) + len(pair.continuation) for pair in group)
    found = {"scores": likely.tolist(), "tokens": longest, "cut": any(pair.cut for pair in group)}
    if words:
        return found | {"acc": int(scores[0][1])}
    with np.errstate(divide="ignore"):  # an empty choice is never the likeliest
        normed = likely / [len(choice) for choice in question.choices]
    return found | {"acc": int(likely.argmax() == question.gold), "acc_norm": int(normed.argmax() == question.gold)}


def summary(
    sets: Sequence[TaskSet], answers: dict[str, list[dict[str, Any]]], *, pooled: bool, seed: int = 0
) -> dict[str, Any]:
    """Figures of each task and of all, each with n and a 95 % interval; the answers themselves for paired tests."""
    tasks = {one.name: _task(one, answers[one.name], seed) for one in sets}
    hits = [_hits(answers[one.name], one.metric) for one in sets]
    value, interval = _pooled(np.concatenate(hits)) if pooled else _mean(hits, seed)
    return {
        "metric": "accuracy" if pooled else "mean accuracy of the tasks",
        "value": value,
        "interval": interval,
        "n": sum(map(len, hits)),
        "unit": "questions",
        "pooled": pooled,
        "truncated": sum(task["truncated"] for task in tasks.values()),
        "tasks": tasks,
        "answers": answers,
    }


def _task(one: TaskSet, answers: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    names = ("acc",) if one.words or len(one.questions[0].contexts) > 1 else ("acc", "acc_norm")
    figures = {name: dict(zip(("value", "interval"), _pooled(_hits(answers, name)))) for name in names}
    if one.words:
        lost = -np.array([answer["scores"][0] for answer in answers])
        ends = bootstrap_ratio(lost, np.ones(len(lost)), seed)
        figures["perplexity"] = {"value": math.exp(lost.mean()), "interval": ends and [math.exp(end) for end in ends]}
    chance = None if one.words else float(np.mean([1 / len(question.choices) for question in one.questions]))
    return {"n": len(answers), "metric": one.metric, **figures, "chance": chance, "hash": one.hash,
            "files": list(one.files), "truncated": sum(answer["cut"] for answer in answers),
            "longest": max(answer["tokens"] for answer in answers)}  # fmt: skip


def _hits(answers: list[dict[str, Any]], metric: str) -> np.ndarray:
    return np.array([answer[metric] for answer in answers], float)


def _pooled(hits: np.ndarray) -> tuple[float, list[float] | None]:
    return float(hits.mean()), wilson(int(hits.sum()), len(hits))


def _mean(groups: Sequence[np.ndarray], seed: int) -> tuple[float, list[float] | None]:
    """Mean of the groups' means, with the interval when each group's questions are drawn anew by themselves."""
    return float(np.mean([group.mean() for group in groups])), bootstrap_cells(
        [np.stack([g, np.ones(len(g))], 1) for g in groups], seed
    )


def compare(first: dict[str, Any], other: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """How much more accurate the first row is, over all and by task, paired by question: value, interval, p-value."""
    gaps = {name: _gaps(first, other, name) for name in other["tasks"]}
    together = [np.concatenate(list(gaps.values()))] if other["pooled"] else list(gaps.values())
    found = {name: _gap([gap], seed) for name, gap in gaps.items()}
    return {"first_minus_this": _gap(together, seed) | {"tasks": found}}


def _gaps(first: dict[str, Any], other: dict[str, Any], name: str) -> np.ndarray:
    """1, 0 or -1 for each question of a task."""
    metric = other["tasks"][name]["metric"]
    return _hits(first["answers"][name], metric) - _hits(other["answers"][name], metric)


def _gap(groups: Sequence[np.ndarray], seed: int) -> dict[str, Any]:
    value, interval = _mean(groups, seed)
    weighted = np.concatenate([group / len(group) for group in groups])
    return {"value": value, "interval": interval, "p": sign_flip(weighted, seed), "n": len(weighted)}
