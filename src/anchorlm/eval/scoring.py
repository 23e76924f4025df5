"""Scoring and greedy writing with any causal model, block by block, so that logits never grow with the text."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from anchorlm.reading import device_of

SLICE = 128  # positions whose logits are held in fp32 at once


@torch.inference_mode()
def token_nll(model: Any, ids: torch.Tensor, block: int = 512) -> torch.Tensor:
    """Negative log-likelihood in nats of each token but the first, [B, T] int64 -> [B, T - 1] float32 on the CPU."""
    ids = ids.to(device_of(model))
    parts, cache, last = [], None, ids.shape[1] - 1
    for begin in range(0, last, block):
        stop = min(begin + block, last)
        out = model(input_ids=ids[:, begin:stop], cache=cache, use_cache=True)
        cache = out.cache
        parts.append(_nll(out.logits, ids[:, begin + 1 : stop + 1]))
    return torch.cat(parts, dim=1)


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
