"""Writes to a matrix state, one a token, in pieces: S_i = exp(a_i) S_{i-1} + k_i v_i^T (GLA, arXiv 2312.06635).

Only ratios exp(G_i - G_j) with j <= i are ever formed, so that no decay, however strong, overflows; the length of a
piece changes no answer. Shapes: B rows, H state heads, R readers of each, T tokens, n pieces of C, f key and e value
width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Axis = Literal["keys", "values"]


@dataclass(frozen=True)
class Stream:
    """keys [B, H, n, C, f], values [B, H, n, C, e], states [B, H, n, f, e] before each piece, `last` after all.

    total: logarithm of what a piece's start has decayed to after each write, along `axis`: its width, or 1 for a decay
    of the whole state; None without decay. seen: the same when the token is read, before its write or after it.
    """

    keys: Tensor
    values: Tensor
    total: Tensor | None
    seen: Tensor | None
    states: Tensor
    last: Tensor
    tokens: int
    own: bool
    axis: Axis

    def read(self, q: Tensor) -> Tensor:
        """Answers [B, H, R, T, e] to queries [B, H, R, T, f], one at each token."""
        pieces = _pieces(q, self.keys.shape[3])
        return (self._earlier(pieces) + self._within(pieces)).flatten(3, 4)[:, :, :, : self.tokens]

    def _earlier(self, q: Tensor) -> Tensor:
        """What the state before the piece answers."""
        if self.seen is None:
            return q @ self.states[:, :, None]
        decay = torch.exp(self.seen)[:, :, None]
        return (q * decay) @ self.states[:, :, None] if self.axis == "keys" else q @ self.states[:, :, None] * decay

    def _within(self, q: Tensor) -> Tensor:
        """What the writes of the same piece answer."""
        size, device = self.keys.shape[3], q.device
        mask = torch.ones(size, size, dtype=torch.bool, device=device).tril(0 if self.own else -1)
        if self.total is None or self.seen is None:
            return self._products(q).masked_fill(~mask, 0.0) @ self.values[:, :, None]
        gap = self.seen[..., :, None, :] - self.total[..., None, :, :]  # [B, H, n, C, C, width]
        ratio = torch.exp(gap.masked_fill(~mask[..., None], float("-inf")))
        if ratio.shape[-1] == 1:
            return (self._products(q) * ratio[:, :, None, ..., 0]) @ self.values[:, :, None]
        if self.axis == "keys":
            weights = torch.einsum("bhrnif,bhnijf->bhrnij", q, ratio * self.keys[..., None, :, :])
            return weights @ self.values[:, :, None]
        weights = self._products(q).masked_fill(~mask, 0.0)
        return torch.einsum("bhrnij,bhnije->bhrnie", weights, ratio * self.values[..., None, :, :])

    def _products(self, q: Tensor) -> Tensor:
        return q @ self.keys[:, :, None].transpose(-1, -2)


def run(
    state: Tensor, keys: Tensor, values: Tensor, decay: Tensor | None, size: int, own: bool, axis: Axis = "keys",
    detach: int = 0,
) -> Stream:  # fmt: skip
    """Write T tokens into state [B, H, f, e]: keys [B, H, T, f], values [B, H, T, e], decay [B, 1 or H, T, width or 1].

    decay: its logarithm, at most 0. own: a token reads after its own write, otherwise before it. detach: let gradients
    flow through at most so many pieces; 0 through all.
    """
    tokens = keys.shape[2]
    size = max(1, min(size, tokens))
    k, v = _pieces(keys, size), _pieces(values, size)
    total = seen = None
    if decay is not None:
        cut = _pieces(decay, size)
        total = cut.cumsum(3)
        seen = total if own else total - cut
    states, last = _states(state, k, v, total, axis, detach)
    return Stream(k, v, total, seen, states, last, tokens, own, axis)


def _pieces(x: Tensor, size: int) -> Tensor:
    """[..., T, m] as [..., n, C, m]; what is added at the end writes nothing and decays nothing."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % size)).unflatten(-2, (-1, size))


def _states(
    state: Tensor, k: Tensor, v: Tensor, total: Tensor | None, axis: Axis, detach: int
) -> tuple[Tensor, Tensor]:
    """The state before each piece, and after the last."""
    fade = None
    if total is not None:
        left = torch.exp(total[:, :, :, -1:] - total)
        k, v = (k * left, v) if axis == "keys" else (k, v * left)
        fade = torch.exp(total[:, :, :, -1:])
        fade = fade.transpose(-1, -2) if axis == "keys" else fade
    added = k.transpose(-1, -2) @ v
    states = []
    for i in range(added.shape[2]):
        if detach and i and i % detach == 0:
            state = state.detach()
        states.append(state)
        state = added[:, :, i] + (state if fade is None else state * fade[:, :, i])
    return torch.stack(states, 2), state
