"""Attention with a limited reach, in bands: memory grows with tokens times window, never tokens squared.

Shapes: B rows, Hq query heads, Hkv KV heads (Hq = g Hkv), T new tokens, n cached tokens, d head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..plan import Reach
from .rows import Span
from .wide import widen

MIN_BLOCK, MAX_BLOCK = 64, 512


@dataclass(frozen=True)
class Partials:
    """Un-normalised attention: numerator [B, Hq, T, d], normaliser and maximum [B, Hq, T, 1]; fp32 or wider."""

    numerator: Tensor
    normaliser: Tensor
    maximum: Tensor

    def merge(self, other: Partials) -> Partials:
        """The partials of both sets of keys together."""
        maximum = torch.maximum(self.maximum, other.maximum)
        left, right = (self.maximum - maximum).exp(), (other.maximum - maximum).exp()
        return Partials(
            self.numerator * left + other.numerator * right,
            self.normaliser * left + other.normaliser * right,
            maximum,
        )

    def finish(self) -> Tensor:
        return self.numerator / self.normaliser


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
    return seen


def partials(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Partials:
    """Softmax attention before the division. q: [B, Hq, T, d], k, v: [B, Hkv, N, d], mask: [B or 1, T, N]."""
    batch, heads, tokens, width = q.shape
    groups = k.shape[1]
    rows = q.reshape(batch, groups, heads // groups * tokens, width)
    scores = widen(rows @ k.transpose(-1, -2)).view(batch, heads, tokens, -1) * scale
    scores = scores.masked_fill(~mask[:, None], float("-inf"))
    maximum = scores.detach().amax(-1, keepdim=True)
    # A query that sees none of these keys has maximum -inf; exp(-inf - 0) gives the zero weights it needs.
    weights = (scores - maximum.masked_fill(maximum == float("-inf"), 0.0)).exp()
    summed = weights.to(v.dtype).view(batch, groups, -1, k.shape[2]) @ v
    return Partials(widen(summed).view(batch, heads, tokens, -1), weights.sum(-1, keepdim=True), maximum)


def attend(q: Tensor, k: Tensor, v: Tensor, reach: Reach, span: Span, scale: float, sinks: Sinks | None = None) -> Tensor:
    """Attention of the new tokens: [B, Hq, T, d].

    q: [B, Hq, T, d]; k, v: [B, Hkv, n + T, d], the cached tokens first; a row's column j is its token
    start - n + j, and columns before its text are empty.
    """
    cached = k.shape[2] - span.width
    if _is_plain_causal(reach, span, cached):
        return F.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=span.width > 1, enable_gqa=True)
    if reach.kind == "full":
        return _full(q, k, v, span, scale)
    return _banded(q, k, v, reach, span, scale, sinks)


def _is_plain_causal(reach: Reach, span: Span, cached: int) -> bool:
    """The kernel and the arguments that transformers gives the teacher, so that results are equal to the bit."""
    if not span.uniform or cached != span.start[0]:
        return False
    limit = reach.window or reach.segment
    whole = cached == 0 and (limit is None or span.width <= limit)
    return whole or (span.width == 1 and reach.kind == "full")


def _full(q: Tensor, k: Tensor, v: Tensor, span: Span, scale: float) -> Tensor:
    positions = span.positions(q.device)
    mask = visible(positions, _key_positions(span, k.shape[2], q.device), Reach())[:, None]
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    parts = [
        F.scaled_dot_product_attention(q[:, :, a : a + MAX_BLOCK], k, v, attn_mask=mask[:, :, a : a + MAX_BLOCK], scale=scale)
        for a in range(0, span.width, MAX_BLOCK)
    ]
    return torch.cat(parts, 2)


def _banded(q: Tensor, k: Tensor, v: Tensor, reach: Reach, span: Span, scale: float, sinks: Sinks | None) -> Tensor:
    limit = reach.window or reach.segment or 1
    block = min(max(limit, MIN_BLOCK), MAX_BLOCK)
    cached = k.shape[2] - span.width
    positions, columns = span.positions(q.device), _key_positions(span, k.shape[2], q.device)
    outputs = []
    for first in range(0, span.width, block):
        last = min(first + block, span.width)
        low = max(0, cached + first - limit + 1)
        band = slice(low, cached + last)
        mask = visible(positions[:, first:last], columns[:, band], reach)
        part = partials(q[:, :, first:last], k[:, :, band], v[:, :, band], mask, scale)
        if sinks is not None and max(span.start) + last > limit:
            part = part.merge(_sink_partials(sinks, positions[:, first:last], first, last, limit, scale))
        outputs.append(part.finish())
    return torch.cat(outputs, 2).to(v.dtype)


def _sink_partials(sinks: Sinks, positions: Tensor, first: int, last: int, window: int, scale: float) -> Partials:
    """Sinks that have left the window; those inside it are already counted there."""
    index = torch.arange(sinks.keys.shape[2], device=positions.device)
    mask = positions[:, :, None] - index >= window
    return partials(sinks.queries[:, :, first:last], sinks.keys, sinks.values, mask, scale)


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
