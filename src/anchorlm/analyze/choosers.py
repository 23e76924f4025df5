"""Rules that choose which past tokens a layer keeps, side by side under the same attention: nothing is trained for it.

Each is a stream: which tokens a query finds kept follows from what came before it, and they are the best `count` of
those beyond its window. The oracle, which knows all later queries, bounds them.

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


@dataclass(frozen=True)
class Layer:
    """One layer as a chooser sees it: its attention, its normalised input x [1, T, D], window and own reach."""

    attention: Any
    x: Tensor
    rotary: Rotary
    window: Reach
    own: Reach
    gate: Callable[[Tensor, Tensor], Tensor] | None = None  # scores [Hkv, T] from x and the keys before RoPE

    @cached_property
    def lefts(self) -> list[int]:
        """Of each query, how many of the first tokens are out of its window."""
        return [max(0, query + 1 - (self.window.window or 0)) for query in range(self.x.shape[1])]


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
    return by_score(layer, _told(layer), count)


def fading(layer: Layer, count: int) -> Tensor:
    """[Hkv, T, T]: what age has left of the scores of the layer's own gate (after TRIM-KV, arXiv 2512.03324)."""
    scores, sinks = _told(layer), layer.window.sinks
    place = torch.arange(scores.shape[1], device=scores.device)
    return torch.stack([_best(scores * (t - place + 1), count, sinks, left) for t, left in enumerate(layer.lefts)], 1)


def _told(layer: Layer) -> Tensor:
    """[Hkv, T]: the scores of the layer's own gate."""
    assert layer.gate is not None
    return layer.gate(layer.x, layer.attention.project(layer.x)[1].transpose(1, 2))


def oracle(layer: Layer, count: int) -> Tensor:
    """[Hkv, 1, T]: the tokens with the highest attention from any later query, of the whole text."""
    return choose(layer.attention, layer.x, layer.rotary, count, layer.window, layer.own)[:, None]


def by_score(layer: Layer, scores: Tensor, count: int) -> Tensor:
    """[Hkv, T, T]: of the tokens that left the window, but the sinks, those of highest score [Hkv, T]."""
    return torch.stack([_best(scores, count, layer.window.sinks, left) for left in layer.lefts], 1)


def received(layer: Layer, count: int) -> Tensor:
    """[Hkv, T, T]: the tokens that received most attention so far (H2O, arXiv 2306.14048).

    Attention is summed over all queries and query heads, over what the layer then sees; what is dropped is lost.
    """
    q, k, _, places = projected(layer.attention, layer.x, layer.rotary)
    total = torch.zeros(k.shape[:2], device=k.device)
    found = []
    for query, left in enumerate(layer.lefts):
        kept = _best(total, count, layer.window.sinks, left)
        total[:, layer.window.sinks : left].masked_fill_(~kept[:, layer.window.sinks : left], -torch.inf)
        found.append(kept)
        own, past = places[:, query : query + 1], places[:, : query + 1]
        open_ = visible(own, past, layer.window)[0] | kept[:, None, None, : query + 1]
        open_ |= visible(own, past, layer.own)[0] & (past < layer.window.sinks)
        scores = q[:, :, query : query + 1] @ k[:, None, : query + 1].mT * layer.attention.scale
        total[:, : query + 1] += softmax(scores.masked_fill(~open_, -torch.inf)).sum((1, 2)).to(total.dtype)
    return torch.stack(found, 1)


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
    "decaying gate": fading,
    "oracle": oracle,
}
