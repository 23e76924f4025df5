"""How much a few exact tokens would help, if it were known which: the upper end of any rule that keeps tokens.

A windowed layer also sees, for each KV head, the `count` past tokens that get the highest attention from any query
more than a window later, under the teacher's own attention in that layer. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from anchorlm.hf import AnchorForCausalLM
from anchorlm.hf.families import cut
from anchorlm.hf.layers import Attended
from anchorlm.ops.window import rotate, sink_position, visible
from anchorlm.plan import Reach

CELLS = 2**24  # attention scores held at once

Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]


def functions(
    model: AnchorForCausalLM, counts: Mapping[int, int], teacher: dict[int, Tensor], window: Reach
) -> dict[int, Attended]:
    """For `attention_as`: windowed attention with so many chosen tokens; teacher[layer] [1, T, D] enters the layer."""
    return {layer: _function(model, layer, count, teacher[layer], window) for layer, count in counts.items()}


def _function(model: AnchorForCausalLM, layer: int, count: int, entering: Tensor, window: Reach) -> Attended:
    decoder = model.backbone.model.layers[layer]
    own, window = (cut(reach, model.backbone.config, layer) for reach in (Reach(), window))

    def rotary(places: Tensor) -> tuple[Tensor, Tensor]:
        return model.backbone.model.rotary_emb(entering, places)

    chosen = choose(decoder.self_attn, decoder.input_layernorm(entering), rotary, count, window, own)[:, None]
    return lambda x, _: attend(decoder.self_attn, x, rotary, chosen, window, own).transpose(1, 2).flatten(2)


def choose(attention: Any, x: Tensor, rotary: Rotary, count: int, window: Reach, own: Reach) -> Tensor:
    """[Hkv, T] bool: the `count` tokens with the highest attention from any query at least a window later.

    x [1, T, D] is the layer's normalised input under the teacher, `own` the teacher's reach; sinks are not chosen.
    """
    q, k, _, places = projected(attention, x, rotary)
    best = q.new_zeros(k.shape[0], x.shape[1])
    for first, last in _blocks(q):
        seen = visible(places[:, first:last], places[:, :last], own)[0]
        scores = (q[:, :, first:last] @ k[:, None, :last].mT * attention.scale).masked_fill(~seen, -torch.inf)
        late = places[0, first:last, None] - places[0, None, :last] >= (window.window or 0)
        weights = softmax(scores).masked_fill(~late, 0)
        best[:, :last] = torch.maximum(best[:, :last], weights.amax((1, 2)).to(best.dtype))
    best[:, : window.sinks] = 0
    top = best.topk(min(count, best.shape[1]), dim=1).indices
    return torch.zeros_like(best, dtype=torch.bool).scatter_(1, top, True) & (best > 0)


def attend(attention: Any, x: Tensor, rotary: Rotary, chosen: Tensor, window: Reach, own: Reach) -> Tensor:
    """[1, Hq, T, d]: softmax over window, sinks at compact positions, and the chosen tokens at their own.

    chosen [Hkv, 1 or T, T]: which tokens beyond the window each query sees.
    """
    q, k, v, places = projected(attention, x, rotary)
    far = projected(attention, x, rotary, sink_position(places, window))[0]
    width, sinks = window.window or 0, window.sinks
    parts = []
    for first, last in _blocks(q):
        distance = places[0, first:last, None] - places[0, None, :last]
        beyond = (distance >= width) & visible(places[:, first:last], places[:, :last], own)[0]
        near = visible(places[:, first:last], places[:, :last], window)[0]
        some = chosen if chosen.shape[1] == 1 else chosen[:, first:last]
        kept = near | (beyond & some[:, None, :, :last])
        scores = q[:, :, first:last] @ k[:, None, :last].mT * attention.scale
        compact = far[:, :, first:last] @ k[:, None, :sinks].mT * attention.scale
        gone = places[0, first:last, None] - places[0, None, :sinks] >= width
        joined = [compact.masked_fill(~gone, -torch.inf), scores.masked_fill(~kept, -torch.inf)]
        weights = softmax(torch.cat(joined, -1)).to(v.dtype)
        parts.append(weights @ torch.cat([v[:, :sinks], v[:, :last]], 1)[:, None])
    return torch.cat(parts, 2).flatten(0, 1)[None]


def projected(
    attention: Any, x: Tensor, rotary: Rotary, stand: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries [Hkv, g, T, d] as if they stood at `stand`, keys and values [Hkv, T, d], and places [1, T]."""
    q, k, v = attention.project(x)
    places = torch.arange(x.shape[1], device=x.device)[None]
    q = rotate(q, *rotary(places if stand is None else stand))[0]
    return q.unflatten(0, (k.shape[1], -1)), rotate(k, *rotary(places))[0], v[0], places


def softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))


def _blocks(q: Tensor) -> Iterator[tuple[int, int]]:
    """Ranges of queries whose scores against all keys stay below CELLS."""
    tokens = q.shape[2]
    size = max(1, CELLS // (q.shape[0] * q.shape[1] * tokens))
    return ((first, min(first + size, tokens)) for first in range(0, tokens, size))
