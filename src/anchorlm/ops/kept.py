"""Exact kept tokens: which ones stay, and attention over them.

Shapes: B rows, Hq query heads, H state heads (Hq = g H), N queries, M kept tokens, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .partials import Partial
from .wide import widen

QUERIES = 256  # whose attention to all tokens exists at a time
UNSEEN = -1e30  # a finite logit: a query that sees no kept token must give no NaN, forward or backward


def best(stream: dict[str, Tensor], order: Tensor, count: int) -> dict[str, Tensor]:
    """The `count` entries of highest order, as they stood; of equals the earlier. Each [B, H, N, ...], order [B, H, N].

    An empty place has the lowest order, and so is the first to go.
    """
    chosen = torch.sort(order, dim=-1, descending=True, stable=True).indices[..., :count].sort(-1).values[..., None]
    return {name: value.gather(2, chosen.expand(-1, -1, -1, value.shape[3])) for name, value in stream.items()}


def attend_kept(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None, scale: float) -> Partial:
    """Attention of q [B, Hq, N, d] over kept k, v [B, H, M, d], both turned for it.

    seen [B, H, N, M]: which query sees which token. bias [B, H, M, 1] is added to a token's logit.
    """
    batch, heads, tokens, width = q.shape
    grouped = q.reshape(batch, k.shape[1], -1, width)
    scores = widen(grouped @ k.transpose(-1, -2) * scale).unflatten(2, (-1, tokens))
    if bias is not None:
        scores = scores + bias.transpose(-1, -2)[:, :, None]
    scores = scores.masked_fill(~seen[:, :, None], UNSEEN)
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    summed = weights.to(v.dtype).flatten(2, 3) @ v
    mass = weights.sum(-1, keepdim=True)
    return Partial(summed.reshape(q.shape), *(x.reshape(batch, heads, tokens, 1) for x in (mass, peak)))


def far_attention(q: Tensor, k: Tensor, scale: float, text: Tensor, position: Tensor, window: int) -> Tensor:
    """The highest attention that each token gets from any later query to which it lies beyond the window: [B, Hkv, T].

    q [B, Hq, T, d] and k [B, Hkv, T, d] after RoPE, of full causal attention. text [B, T] says which document a token
    belongs to, -1 for padding; position [B, T] is its place in it. The maximum is also over the query heads of a KV
    head; 0 where no query comes that late.
    """
    batch, heads, tokens, width = q.shape
    found = q.new_zeros(batch, k.shape[1], tokens)
    for first in range(0, tokens, QUERIES):
        last = min(first + QUERIES, tokens)
        far = last - window  # a token at or behind this is beyond the window of no query here, whatever its document
        if far <= 0:
            continue
        age = position[:, first:last, None] - position[:, None, :last]
        seen = (text[:, first:last, None] == text[:, None, :last]) & (age >= 0) & (text[:, None, :last] >= 0)
        grouped = q[:, :, first:last].reshape(batch, k.shape[1], -1, width)
        scores = (grouped @ k[:, :, :last].transpose(-1, -2) * scale).unflatten(2, (heads // k.shape[1], -1))
        shares = torch.softmax(widen(scores).masked_fill_(~seen[:, None, None], UNSEEN), -1)[..., :far]
        late = seen[..., :far] & (age[..., :far] >= window)
        highest = shares.masked_fill(~late[:, None, None], 0.0).amax((2, 3)).to(found.dtype)
        found[:, :, :far] = torch.maximum(found[:, :, :far], highest)
    return found
