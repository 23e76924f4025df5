"""Needles in real text: is a fact read long ago still known, and how much of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anchorlm.data.needles import Needles, Prompt
from anchorlm.eval.scoring import greedy
from anchorlm.eval.stats import bootstrap_ratio, wilson
from anchorlm.reading import beyond, prefill, rewind

SLACK = 4  # tokens written beyond the answer's own length, for an opening quote or "the number"
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)


def prompts(needles: Needles, length: int, depth: float, n: int, seed: int) -> list[Prompt]:
    """The n prompts of one cell: the same for every model, and for every n the first ones are the same."""
    key = [seed, length, round(1000 * depth)]
    return [needles.make(length, depth, np.random.default_rng([*key, sample])) for sample in range(n)]


def ask(model: Any, group: list[Prompt], tokenizer: Any, block: int = 512) -> list[dict[str, Any]]:
    """Answers to prompts of one length: found in the greedy text; tokens right when the earlier are given."""
    logits, cache = prefill(model, torch.from_numpy(np.stack([prompt.ids for prompt in group])), block)
    again = rewind(cache)
    longest = max(len(prompt.answer_ids) for prompt in group)
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


def niah_cell(model: Any, needles: Needles, length: int, depth: float, n: int, seed: int = 0, **options: Any) -> dict:
    """One cell of the map, `n` needles. options: batch (1), block (512)."""
    note = beyond(model, length)
    if note:
        return {"length": length, "depth": depth, "n": 0, "note": note}
    made = prompts(needles, length, depth, n, seed)
    batch, block = options.get("batch", 1), options.get("block", 512)
    answers = [
        answer for at in range(0, n, batch) for answer in ask(model, made[at : at + batch], needles.tokenizer, block)
    ]
    return {"length": length, "depth": depth, "n": n, "answers": answers, **_share(answers)}


def _share(answers: list[dict]) -> dict[str, float]:
    right, counted = sum(a["right"] for a in answers), sum(a["counted"] for a in answers)
    return {"exact": sum(a["exact"] for a in answers) / len(answers), "digits": right / counted}


def niah_summary(cells: list[dict], seed: int = 0) -> dict[str, Any]:
    """Share of exact answers over all measured cells, with interval; cells beyond the model are named, not counted."""
    answers = [answer for cell in cells for answer in cell.get("answers", ())]
    base = {"metric": "exact match", "n": len(answers), "unit": "needles", "cells": cells}
    if not answers:
        return {**base, "value": None, "interval": None, "note": cells[0].get("note", "nothing measured")}
    hits = sum(answer["exact"] for answer in answers)
    right, counted = (np.array([a[name] for a in answers], float) for name in ("right", "counted"))
    return {
        **base,
        "value": hits / len(answers),
        "interval": wilson(hits, len(answers)),
        "digits": {"value": float(right.sum() / counted.sum()), "interval": bootstrap_ratio(right, counted, seed)},
        "by_template": _by(answers, "template"),
    }


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
    """The whole map, `n` needles in each cell of lengths x depths; `progress(done, total)` counts cells."""
    cells: list[dict] = []
    for length in lengths:
        for depth in depths:
            cells.append(niah_cell(model, needles, length, depth, n, seed, **options))
            if progress:
                progress(len(cells), len(lengths) * len(depths))
    return niah_summary(cells, seed)
