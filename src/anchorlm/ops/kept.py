"""Exact kept tokens: which ones stay, and attention over them.

Shapes: B rows, Hq query heads, H state heads (Hq = g H), N queries, M kept tokens, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .partials import Partial
from .wide import widen

UNSEEN = -1e30  # a finite logit: a query that sees no kept token must give no NaN, forward or backward


def best(stream: dict[str, Tensor], order: Tensor, count: int) -> dict[str, Tensor]:
    """The `count` entries of highest order, as they stood; of equals the earlier. Each [B, H, N, ...], order [B, H, N].

    An empty place has order -inf, and so is the first to go.
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
    mass = torch.logsumexp(scores, -1, keepdim=True)
    answer = torch.exp(scores - mass).to(v.dtype).flatten(2, 3) @ v
    return Partial(answer.reshape(q.shape), mass.reshape(batch, heads, tokens, 1))
