"""Rules that choose which past tokens a layer keeps, side by side under the same attention: nothing is trained for it.

Each is a stream: which tokens are kept while a block of queries is read follows from what came before the block, and
at most `count` tokens beyond the window are seen at any time. The oracle, which knows all later queries, bounds them.

Shapes: T tokens, Hkv KV heads, g query heads of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anchorlm.ops.window import visible
from anchorlm.plan import Reach

from .oracle import Rotary, choose, projected, softmax

BLOCK = 64  # queries that share one set of kept tokens: the chunk of a slot of kept tokens


@dataclass(frozen=True)
class Layer:
    """One layer as a chooser sees it: its attention, its normalised input x [1, T, D], window and own reach."""

    attention: Any
    x: Tensor
    rotary: Rotary
    window: Reach
    own: Reach
    gate: Callable[[Tensor, Tensor], Tensor] | None = None  # scores [T, Hkv] from x and the keys before RoPE

    @cached_property
    def width(self) -> int:
        return self.window.window or 0

    @cached_property
    def blocks(self) -> list[tuple[int, int, int]]:
        """(first, last, left): queries first .. last - 1; tokens before `left` are out of sight for one of them."""
        tokens = self.x.shape[1]
        lasts = [(first, min(first + BLOCK, tokens)) for first in range(0, tokens, BLOCK)]
        return [(first, last, max(0, last - self.width)) for first, last in lasts]


Chooser = Callable[[Layer, int], Tensor]


def recent(layer: Layer, count: int) -> Tensor:
    """[Hkv, T, T]: the newest tokens beyond the window."""
    tokens = layer.x.shape[1]
    heads = layer.attention.shape.kv_heads
    return by_score(layer, torch.arange(tokens, device=layer.x.device).float().expand(heads, -1), count)


def key_norm(layer: Layer, count: int) -> Tensor:
    """[Hkv, T, T]: the shortest keys (arXiv 2406.11430)."""
    return by_score(layer, -layer.attention.project(layer.x)[1][0].float().norm(dim=-1), count)


def gated(layer: Layer, count: int) -> Tensor:
    """[Hkv, T, T]: the highest scores of the layer's own gate."""
    assert layer.gate is not None
    return by_score(layer, layer.gate(layer.x, layer.attention.project(layer.x)[1].transpose(1, 2)), count)


def oracle(layer: Layer, count: int) -> Tensor:
    """[Hkv, 1, T]: the tokens with the highest attention from any later query, of the whole text."""
    return choose(layer.attention, layer.x, layer.rotary, count, layer.window, layer.own)[:, None]


def by_score(layer: Layer, scores: Tensor, count: int) -> Tensor:
    """[Hkv, T, T]: of the tokens that left the window, but the sinks, those of highest score [Hkv, T]."""
    seen = torch.zeros(*scores.shape, scores.shape[1], dtype=torch.bool, device=scores.device)
    for first, last, left in layer.blocks:
        seen[:, first:last] = _best(scores, count, layer.window.sinks, left)[:, None]
    return seen


def received(layer: Layer, count: int) -> Tensor:
    """[Hkv, T, T]: the tokens that received most attention so far (H2O, arXiv 2306.14048).

    Attention is summed over all queries and query heads, over what the layer then sees; what is dropped is lost.
    """
    q, k, _, places = projected(layer.attention, layer.x, layer.rotary)
    tokens = layer.x.shape[1]
    total = torch.zeros(k.shape[:2], device=k.device)
    seen = torch.zeros(k.shape[0], tokens, tokens, dtype=torch.bool, device=k.device)
    for first, last, left in layer.blocks:
        kept = _best(total, count, layer.window.sinks, left)
        total[:, layer.window.sinks : left].masked_fill_(~kept[:, layer.window.sinks : left], -torch.inf)
        seen[:, first:last] = kept[:, None]
        near = visible(places[:, first:last], places[:, :last], layer.window)[0]
        sinks = visible(places[:, first:last], places[:, :last], layer.own)[0] & (places[:, :last] < layer.window.sinks)
        scores = q[:, :, first:last] @ k[:, None, :last].mT * layer.attention.scale
        open_ = near | sinks | (kept[:, None, None, :last] & (places[0, first:last, None] >= places[0, None, :last]))
        total[:, :last] += softmax(scores.masked_fill(~open_, -torch.inf)).sum((1, 2)).to(total.dtype)
    return seen


def _best(scores: Tensor, count: int, sinks: int, left: int) -> Tensor:
    """[Hkv, T] bool: the `count` highest finite scores of tokens sinks .. left - 1; of equals the earlier."""
    found = torch.zeros_like(scores, dtype=torch.bool)
    pool = scores[:, sinks:left]
    if pool.shape[1] > 0:
        top = pool.sort(dim=1, descending=True, stable=True).indices[:, :count] + sinks
        found.scatter_(1, top, True)
    return found & scores.isfinite()


CHOOSERS: dict[str, Chooser] = {
    "recent": recent,
    "key norm": key_norm,
    "attention received": received,
    "gate": gated,
    "oracle": oracle,
}
