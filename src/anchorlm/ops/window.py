"""Attention with a limited reach, in bands: memory grows with tokens times window, never tokens squared.

Shapes: B rows, Hq query heads, Hkv KV heads (Hq = g Hkv), T new tokens, n cached tokens, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..plan import Reach
from .partials import Partial, concatenate
from .rows import Span
from .wide import widen

MIN_BLOCK, MAX_BLOCK = 64, 512


@dataclass(frozen=True)
class Sinks:
    """Keys and values [B, Hkv, s, d] of the first tokens, and the queries [B, Hq, T, d] rotated for them."""

    keys: Tensor
    values: Tensor
    queries: Tensor


def visible(queries: Tensor, keys: Tensor, reach: Reach) -> Tensor:
    """Which key a query may see: [B or 1, T, N] from positions [B or 1, T] and [B or 1, N]. Negative keys are empty."""
    q, k = queries[:, :, None], keys[:, None, :]
    seen = (k >= 0) & (k <= q)
    if reach.kind == "window":
        return seen & (q - k < reach.window)
    if reach.kind == "segment":
        return seen & (k >= q // reach.segment * reach.segment)
    if reach.kind == "terrace":
        return seen & (k >= (q // reach.window - 1) * reach.window)
    return seen


@dataclass(frozen=True)
class Band:
    """Queries first .. last - 1 against key columns low .. high - 1.

    bias [B or 1, last - first, high - low] and sink_bias [B or 1, last - first, s] are 0 or -inf; bias is None when
    every query sees every column, sink_bias when no query sees a sink.
    """

    first: int
    last: int
    low: int
    high: int
    bias: Tensor | None
    sink_bias: Tensor | None


def bands(reach: Reach, span: Span, cached: int, device: torch.device, dtype: torch.dtype) -> list[Band]:
    """The bands of a windowed or segmented call; the same for every layer of that reach."""
    limit = reach.limit or 1
    block = min(max(limit, MIN_BLOCK), MAX_BLOCK)
    positions, columns = span.positions(device), _key_positions(span, cached + span.width, device)
    found = []
    for first in range(0, span.width, block):
        last = min(first + block, span.width)
        low, high = max(0, cached + first - limit + 1), cached + last
        places = positions[:, first:last]
        seen = visible(places, columns[:, low:high], reach)
        sinks = None
        if reach.sinks and max(span.start) + last > limit:
            sinks = places[:, :, None] - torch.arange(min(reach.sinks, max(span.end)), device=device) >= limit
        sink_bias = None if sinks is None else _bias(sinks, dtype, always=True)
        found.append(Band(first, last, low, high, _bias(seen, dtype), sink_bias))
    return found


def _bias(seen: Tensor, dtype: torch.dtype, always: bool = False) -> Tensor | None:
    if not always and bool(seen.all()):
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reach: Reach,
    span: Span,
    scale: float,
    sinks: Sinks | None = None,
    plan: list[Band] | None = None,
) -> Tensor:
    """Attention of the new tokens: [B, Hq, T, d].

    q: [B, Hq, T, d]; k, v: [B, Hkv, n + T, d], the cached tokens first; a row's column j is its token
    start - n + j, and columns before its text are empty. plan: the `bands` of this call, where a caller has them.
    """
    return attend_partial(q, k, v, reach, span, scale, sinks, plan, _softmax).answer


Normalise = Callable[[Tensor, torch.dtype], tuple[Tensor, Tensor | None, Tensor | None]]


def _softmax(scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, None, None]:
    return torch.softmax(scores, -1, dtype=_wide(scores)).to(dtype), None, None


def _weighed(scores: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    scores = widen(scores)
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    return weights.to(dtype), weights.sum(-1, keepdim=True), peak


def attend_partial(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reach: Reach,
    span: Span,
    scale: float,
    sinks: Sinks | None = None,
    plan: list[Band] | None = None,
    normalise: Normalise = _weighed,
) -> Partial:
    """The same attention with its mass, to which keys beyond the reach can be joined.

    The mass is None where the reach holds the whole text, and there is nothing beyond it.
    """
    cached = k.shape[2] - span.width
    if _is_plain_causal(reach, span, cached):
        return Partial(F.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=span.width > 1, enable_gqa=True))
    if reach.kind == "full":
        return Partial(_full(q, k, v, span, scale))
    found = bands(reach, span, cached, q.device, q.dtype) if plan is None else plan
    rows, columns = [(band.first, band.last) for band in found], [(band.low, band.high) for band in found]
    far = (None,) * len(found) if sinks is None else cut(sinks.queries, rows)
    cuts = zip(cut(q, rows), far, cut(k, columns), cut(v, columns), found, strict=True)
    return concatenate([_band(*parts, scale, sinks, normalise) for parts in cuts])


def cut(x: Tensor, ranges: list[tuple[int, int]]) -> list[Tensor]:
    """The ranges [low, high) of x [B, H, N, d] along N; they may overlap.

    x is split once, and a range is put together from pieces: the gradient of a plain slice would be a tensor as long
    as x for every range, and the cost of a backward pass quadratic in N.
    """
    edges = sorted({0, x.shape[2], *(edge for pair in ranges for edge in pair)})
    pieces = x.split([high - low for low, high in pairwise(edges)], 2)
    found = [pieces[edges.index(low) : edges.index(high)] for low, high in ranges]
    return [part[0] if len(part) == 1 else torch.cat(part, 2) for part in found]


def _band(
    q: Tensor,
    far_q: Tensor | None,
    k: Tensor,
    v: Tensor,
    band: Band,
    scale: float,
    sinks: Sinks | None,
    normalise: Normalise,
) -> Partial:
    """A band's keys and, where they left the window, the sinks: [B, Hq, last - first, d]."""
    scores = _scores(q, k, band.bias, scale)
    if sinks is None or band.sink_bias is None or far_q is None:
        weights, mass, peak = normalise(scores, v.dtype)
        summed = weights @ v
    else:
        far = _scores(far_q, sinks.keys, band.sink_bias, scale)
        count = far.shape[-1]
        weights, mass, peak = normalise(torch.cat([far, scores], -1), v.dtype)
        summed = weights[..., :count] @ sinks.values + weights[..., count:] @ v
    return Partial(summed.reshape(q.shape), *(x if x is None else x.reshape(*q.shape[:-1], 1) for x in (mass, peak)))


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Scaled and masked products [B, Hkv, g T, N]; query heads of one KV head lie under each other."""
    batch, heads, tokens, width = q.shape
    groups = k.shape[1]
    rows = q.reshape(batch * groups, heads // groups * tokens, width)
    keys = k.reshape(batch * groups, -1, width).transpose(1, 2)
    if bias is None:
        scores = torch.bmm(rows * scale, keys)
    else:
        tiled = bias.repeat(1, heads // groups, 1).repeat_interleave(rows.shape[0] // bias.shape[0], 0)
        scores = torch.baddbmm(tiled, rows, keys, alpha=scale)
    return scores.view(batch, groups, rows.shape[1], -1)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _is_plain_causal(reach: Reach, span: Span, cached: int) -> bool:
    """The kernel and the arguments that transformers gives the teacher, so that results are equal to the bit."""
    if reach.meta or not span.uniform or cached != span.start[0]:
        return False
    limit = reach.limit
    return (cached == 0 or span.width == 1) and (limit is None or span.end[0] <= limit)


def _full(q: Tensor, k: Tensor, v: Tensor, span: Span, scale: float) -> Tensor:
    positions = span.positions(q.device)
    mask = visible(positions, _key_positions(span, k.shape[2], q.device), Reach())[:, None]
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    parts = zip(q.split(MAX_BLOCK, 2), mask.split(MAX_BLOCK, 2), strict=True)
    return torch.cat([F.scaled_dot_product_attention(p, k, v, attn_mask=m, scale=scale) for p, m in parts], 2)


def _key_positions(span: Span, columns: int, device: torch.device) -> Tensor:
    """Position of each key column: [1, n + T] when all rows agree, else [B, n + T]."""
    starts = span.start[:1] if len(set(span.start)) == 1 else span.start
    first = torch.tensor(starts, device=device)[:, None] - (columns - span.width)
    return first + torch.arange(columns, device=device)


def sink_position(positions: Tensor, reach: Reach) -> Tensor:
    """Where a query stands for the sinks: right after sinks and window, so distances never leave the trained range."""
    assert reach.window is not None
    return positions.clamp(max=reach.window + reach.sinks - 1)


def keep(k: Tensor, v: Tensor, span: Span, size: int | None) -> tuple[Tensor, Tensor]:
    """The newest `size` cached tokens (None: all) after the call, right-aligned in every row."""
    cached = k.shape[2] - span.width
    longest = max(span.end)
    count = longest if size is None else min(size, longest)
    if len(set(span.length)) == 1:
        end = cached + span.length[0]
        return k[:, :, max(0, end - count) : end], v[:, :, max(0, end - count) : end]
    ends = torch.tensor(span.length, device=k.device)[:, None] + cached
    index = (ends - count + torch.arange(count, device=k.device)).clamp(min=0)
    index = index[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
    return k.gather(2, index), v.gather(2, index)


def keep_sinks(stored: Tensor | None, new: Tensor, span: Span, count: int) -> Tensor:
    """The first `count` tokens of each row: [B, Hkv, s, d] from what is stored and the new tokens [B, Hkv, T, d]."""
    held = 0 if stored is None else stored.shape[2]
    if held >= count and min(span.start) >= count:
        assert stored is not None
        return stored
    if span.uniform:
        past = [] if stored is None else [stored[:, :, : span.start[0]]]
        return torch.cat([*past, new[:, :, : max(0, count - span.start[0])]], 2)
    stream = new if stored is None else torch.cat([stored, new], 2)
    index = torch.arange(min(count, max(span.end)), device=new.device)
    starts = torch.tensor(span.start, device=new.device)[:, None]
    columns = torch.where(index < starts, index, index - starts + held).clamp(max=stream.shape[2] - 1)
    columns = columns[:, None, :, None].expand(-1, new.shape[1], -1, new.shape[3])
    return stream.gather(2, columns)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (RoFormer, arXiv 2104.09864). x: [B, H, T, d]; cos, sin: [B or 1, T, d]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos[:, None]) + (turned * sin[:, None])
