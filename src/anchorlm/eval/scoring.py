"""Scoring and greedy writing with any causal model, block by block, so that logits never grow with the text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from anchorlm.core import UserError
from anchorlm.reading import device_of, prefill

SLICE = 128  # positions whose logits are held in fp32 at once


@torch.inference_mode()
def token_nll(model: Any, ids: torch.Tensor, block: int = 512) -> torch.Tensor:
    """Negative log-likelihood in nats of each token but the first, [B, T] int64 -> [B, T - 1] float32 on the CPU."""
    return torch.cat([_nll(logits, targets) for logits, targets in _read(model, ids, block)], dim=1)


def _read(model: Any, ids: torch.Tensor, block: int, cache: Any = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits [B, n, V] and the tokens [B, n] they predict, block by block, after what the cache has read."""
    ids = ids.to(device_of(model))
    last = ids.shape[1] - 1
    for begin in range(0, last, block):
        stop = min(begin + block, last)
        out = model(input_ids=ids[:, begin:stop], cache=cache, use_cache=True)
        cache = out.cache
        check_finite(model, out.logits)
        yield out.logits, ids[:, begin + 1 : stop + 1]


def check_finite(model: Any, logits: torch.Tensor) -> None:
    """Raise UserError for logits that hold what is no number: nothing can be measured on them."""
    places = ~(logits < torch.inf).all(-1)
    if bool(places.any()):
        rules = dict.fromkeys(slot.rule for slot in model.plan.slots.values()) if hasattr(model, "plan") else ()
        found = f" or its memory, of rule {', '.join(map(repr, rules))}," if rules else ""
        raise UserError(
            f"the model gives NaN at {int(places.sum()):,} of {places.numel():,} tokens; its weights{found} hold it"
        )


def _nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[B, T, V], [B, T] -> [B, T] float32; the vocabulary stays the last, contiguous axis."""
    pieces = zip(logits.split(SLICE, dim=1), targets.split(SLICE, dim=1), strict=True)
    found = [F.cross_entropy(a.float().flatten(0, 1), b.flatten(), reduction="none").view_as(b) for a, b in pieces]
    return torch.cat(found, dim=1).cpu()


@torch.inference_mode()
def greedy(model: Any, logits: torch.Tensor, cache: Any, count: int) -> torch.Tensor:
    """The `count` most likely next tokens [B, count], one by one, from the logits [B, V] after the prompt."""
    chosen = [logits.argmax(-1, keepdim=True)]
    for _ in range(count - 1):
        out = model(input_ids=chosen[-1], cache=cache, use_cache=True)
        cache = out.cache
        chosen.append(out.logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(chosen, dim=1)


@torch.inference_mode()
def token_scores(model: Any, ids: torch.Tensor, block: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each token but the first: its negative log-likelihood in nats, and whether it was the most likely one.

    [B, T] int64 -> [B, T - 1] float32 and bool, on the CPU.
    """
    return _told(_read(model, ids, block))


@torch.inference_mode()
def continuation_scores(
    model: Any, logits: torch.Tensor, cache: Any, ids: torch.Tensor, block: int = 512
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `token_scores`, of every one of ids [B, T] that follow what was read; logits [B, V] and cache: after that."""
    first = (logits[:, None], ids[:, :1].to(logits.device))
    return _told(itertools.chain([first], _read(model, ids, block, cache)))


def _told(blocks: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative log-likelihood and whether the most likely token, of blocks as `_read` gives them."""
    found = [(_nll(logits, targets), (logits.argmax(-1) == targets).cpu()) for logits, targets in blocks]
    return torch.cat([nll for nll, _ in found], dim=1), torch.cat([hit for _, hit in found], dim=1)


@torch.inference_mode()
def write(model: Any, tokenizer: Any, ids: np.ndarray, count: int, block: int = 512, until: str = "") -> str:
    """What the model writes after ids [T], greedily: `count` tokens at most, up to its eos or to the text `until`."""
    logits, cache = prefill(model, torch.from_numpy(ids)[None], block)
    check_finite(model, logits)
    written: list[int] = []
    while True:
        chosen = logits.argmax(-1, keepdim=True)
        written.append(int(chosen))
        text = tokenizer.decode(written)
        if len(written) == count or written[-1] == tokenizer.eos_token_id or (until and until in text):
            break
        out = model(input_ids=chosen, cache=cache, use_cache=True)
        logits, cache = out.logits[:, -1], out.cache
    ended = written[-1:] == [tokenizer.eos_token_id]
    text = tokenizer.decode(written[:-1] if ended else written)
    return text.partition(until)[0] if until else text
