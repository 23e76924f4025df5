"""Needles in real text: is a fact read long ago still known, and how much of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anchorlm.data.needles import Needles, Prompt
from anchorlm.eval.scoring import check_finite, greedy
from anchorlm.eval.stats import bootstrap_ratio, wilson
from anchorlm.reading import beyond, prefill, rewind

SLACK = 4  # tokens written beyond the answer's own length, for an opening quote or "the number"
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
TEXTS = 4  # in which the needles of one length are hidden at least, where there are as many needles


def prompts(needles: Needles, length: int, depth: float, n: int, seed: int) -> list[Prompt]:
    """The n prompts of one cell: the same for every model, and for every n the first ones are the same.

    Every needle has its own fact; its text is that of all needles with its `text_of`.
    """
    texts = [needles.text(length, np.random.default_rng([seed, length, text_of(depth, s)])) for s in range(n)]
    key = [seed, length, round(1000 * depth)]
    return [needles.hide(texts[s], length, depth, np.random.default_rng([*key, s])) for s in range(n)]


def text_of(depth: float, sample: int) -> int:
    """The number of the text in which a needle is hidden.

    The first `TEXTS` needles of a depth take that many texts in turn, so that few needles are not all in one text; each
    further needle of a depth has a text of its own, which it shares with those of the other depths.
    """
    return sample if sample >= TEXTS else (int(5 * depth) + sample) % TEXTS


def texts_of(depths: tuple[float, ...], n: int) -> list[int]:
    """The numbers of all texts that `n` needles at each depth are hidden in."""
    return sorted({text_of(depth, sample) for depth in depths for sample in range(n)})


def ask_in_turn(model: Any, group: list[Prompt], tokenizer: Any, block: int = 512) -> list[dict[str, Any]]:
    """The answers that `ask` gives to each prompt alone, for prompts in one text; what they begin with is read once.

    The state before a fact is kept, and each deeper needle goes on from the one before.
    """
    answers: dict[int, dict[str, Any]] = {}
    cache, read, back = None, 0, None
    for number in sorted(range(len(group)), key=lambda number: group[number].shared):
        prompt = group[number]
        cache = back() if back else None
        if prompt.shared > read:
            cache = prefill(model, torch.from_numpy(prompt.ids[None, read : prompt.shared]), block, cache)[1]
            read = prompt.shared
        back = rewind(cache) if read and len(answers) + 1 < len(group) else None
        answers[number] = ask(model, [prompt], tokenizer, block, cache, read)[0]
    return [answers[number] for number in range(len(group))]


def ask(
    model: Any, group: list[Prompt], tokenizer: Any, block: int = 512, cache: Any = None, read: int = 0
) -> list[dict[str, Any]]:
    """Answers to prompts of one length: found in the greedy text; tokens right when the earlier are given.

    cache: the state after the first `read` tokens, if those are read already.
    """
    logits, cache = prefill(model, torch.from_numpy(np.stack([prompt.ids[read:] for prompt in group])), block, cache)
    again = rewind(cache)
    longest = max(len(prompt.answer_ids) for prompt in group)
    check_finite(model, logits)
    written = greedy(model, logits, cache, longest + SLACK)
    guessed = _forced(model, logits, again(), group, longest)
    return [
        {
            "exact": matches(tokenizer.decode(written[row].tolist()), prompt.answer),
            "right": int((guessed[row, : len(prompt.answer_ids)] == prompt.answer_ids)[prompt.counted].sum()),
            "counted": int(prompt.counted.sum()),
            "template": prompt.template,
        }
        for row, prompt in enumerate(group)
    ]


@torch.inference_mode()
def _forced(model: Any, logits: torch.Tensor, cache: Any, group: list[Prompt], longest: int) -> np.ndarray:
    """Most likely token [B, longest] at each place of the answer, the true answer given before it."""
    answers = np.zeros((len(group), longest), np.int64)
    for row, prompt in zip(answers, group, strict=True):
        row[: len(prompt.answer_ids)] = prompt.answer_ids
    first = logits.argmax(-1, keepdim=True).cpu()
    if longest == 1:
        return first.numpy()
    given = torch.from_numpy(answers[:, :-1]).to(logits.device)
    rest = model(input_ids=given, cache=cache, use_cache=True).logits.argmax(-1).cpu()
    return torch.cat([first, rest], dim=1).numpy()


def matches(written: str, answer: str) -> bool:
    """The text holds the answer, not as part of a longer number or word; `_` is how plain text marks italics."""
    return re.search(rf"(?<![^\W_]){re.escape(answer)}(?![^\W_])", written) is not None


def niah_cells(
    model: Any,
    needles: Needles,
    length: int,
    depths: tuple[float, ...] = DEPTHS,
    n: int = 4,
    seed: int = 0,
    keep: Callable[[int, Callable[[], Any]], Any] = lambda text, compute: compute(),
    **options: Any,
) -> list[dict]:
    """The map at one length, `n` needles at each depth.

    keep(text, compute): the answers to the needles of one text, computed or from an earlier run. options: batch (1),
    block (512); with a batch above 1, prompts are read side by side, each from its beginning.
    """
    note = beyond(model, length)
    if note:
        return [{"length": length, "depth": depth, "n": 0, "note": note} for depth in depths]
    made = {(d, s): p for d in depths for s, p in enumerate(prompts(needles, length, d, n, seed))}
    answers: dict[tuple[float, int], dict[str, Any]] = {}
    for text in texts_of(depths, n):
        places = [place for place in made if text_of(*place) == text]
        group = [made[place] for place in places]
        found = keep(text, lambda group=group: _answers(model, group, needles.tokenizer, **options))
        answers |= dict(zip(places, found, strict=True))
    return [_cell(length, depth, [answers[depth, s] for s in range(n)]) for depth in depths]


def _answers(model: Any, group: list[Prompt], tokenizer: Any, batch: int = 1, block: int = 512) -> list[dict]:
    if batch == 1:
        return ask_in_turn(model, group, tokenizer, block)
    parts = [group[at : at + batch] for at in range(0, len(group), batch)]
    return [answer for part in parts for answer in ask(model, part, tokenizer, block)]


def _cell(length: int, depth: float, answers: list[dict]) -> dict:
    return {"length": length, "depth": depth, "n": len(answers), "answers": answers, **_share(answers)}


def _share(answers: list[dict]) -> dict[str, float]:
    right, counted = sum(a["right"] for a in answers), sum(a["counted"] for a in answers)
    return {"exact": sum(a["exact"] for a in answers) / len(answers), "digits": right / counted}


def niah_summary(cells: list[dict], seed: int = 0) -> dict[str, Any]:
    """Share of exact answers over all measured cells, with Wilson's interval, which takes needles in one text for
    independent, and of digits, with a bootstrap over texts; cells beyond the model are named, not counted.
    """
    answers = [answer for cell in cells for answer in cell.get("answers", ())]
    base = {"metric": "exact match", "n": len(answers), "unit": "needles", "cells": cells}
    if not answers:
        return {**base, "value": None, "interval": None, "note": cells[0].get("note", "nothing measured")}
    hits = sum(answer["exact"] for answer in answers)
    right, counted = _digits(cells).T
    return {
        **base,
        "value": hits / len(answers),
        "interval": wilson(hits, len(answers)),
        "digits": {"value": float(right.sum() / counted.sum()), "interval": bootstrap_ratio(right, counted, seed)},
        "by_template": _by(answers, "template"),
    }


def _digits(cells: list[dict]) -> np.ndarray:
    """[texts, 2]: digits right and digits counted of all needles that are hidden in one text."""
    texts: dict[tuple[int, int], np.ndarray] = {}
    for cell in cells:
        for at, answer in enumerate(cell.get("answers", ())):
            place = cell["length"], text_of(cell["depth"], at)
            texts[place] = texts.get(place, np.zeros(2)) + (answer["right"], answer["counted"])
    return np.array(list(texts.values()))


def _by(answers: list[dict], name: str) -> dict[str, dict]:
    groups: dict[str, list[dict]] = {}
    for answer in answers:
        groups.setdefault(answer[name], []).append(answer)
    return {key: {"n": len(group), **_share(group)} for key, group in sorted(groups.items())}


def niah(
    model: Any,
    needles: Needles,
    lengths: list[int],
    depths: tuple[float, ...] = DEPTHS,
    n: int = 4,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The whole map, `n` needles in each cell of lengths x depths; `progress(done, total)` counts lengths."""
    cells: list[dict] = []
    for done, length in enumerate(lengths, 1):
        cells += niah_cells(model, needles, length, depths, n, seed, **options)
        if progress:
            progress(done, len(lengths))
    return niah_summary(cells, seed)
