"""A slot that keeps the exact keys and values of a few past tokens: the best of the text so far, by a score.

The best M of a stream are the same however the stream is cut, so the state is streaming-exact; its size is constant.
"""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..ops.kept import best
from ..ops.wide import widen
from ..rules import KeptOptions
from .base import Memory, Weights, affine

EMPTY = -1e30  # the score of a place that nothing fills: finite, so that a state holds numbers only
GRID = 2.0**12  # steps of a score in one unit: finer differences do not decide, the earlier token stays
NEWEST = "newest"  # of a state with `follow`: the last written token's own score
STARTS = {"gate": -6.0, "decay": 3.0}  # both near a score of -6 beyond a window of 128: the usual highest attention


class Gate(nn.Module):
    """A score per token and KV head from the layer's input and the token's keys, before RoPE: [B, T, H] fp32.

    Trained on log(highest attention of any later query + 1e-3) (`anchorlm.train`, `keep`). start: of every score.
    """

    def __init__(self, hidden: int, keys: int, width: int, heads: int, start: float = STARTS["gate"]):
        super().__init__()
        self.start = start
        self.inner_weight = nn.Parameter(torch.empty(width, hidden + keys))
        self.inner_bias = nn.Parameter(torch.empty(width))
        self.outer_weight = nn.Parameter(torch.empty(heads, width))
        self.outer_bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.inner_weight, self.outer_weight):
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))
        nn.init.zeros_(self.inner_bias)
        nn.init.constant_(self.outer_bias, self.start)

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        inputs = torch.cat([widen(x), widen(k).flatten(2)], -1)
        return affine(F.gelu(affine(inputs, self.inner_weight, self.inner_bias)), self.outer_weight, self.outer_bias)


class KeptMemory(Memory, rule="kept"):
    """M tokens a KV head: keys before RoPE and values [B, H, M, d], scores and positions [B, H, M, 1], in text order.

    A place that nothing fills has position -1. With `follow` also the newest token's own score [B, H, 1, 1]. The score
    also enters the attention logit of its token, times `bonus`, which starts at 0: that is how next-token training
    reaches the gate.
    """

    feature_map = None

    def __init__(self, options: KeptOptions, heads: int, dim: int, hidden: int, kv_heads: int = 0):
        super().__init__()
        self.options, self.heads, self.dim = options, heads, dim
        learned = options.choose in STARTS
        sizes = (hidden, (kv_heads or heads) * dim, options.width, heads)
        self.gate = Gate(*sizes, STARTS[options.choose]) if learned else None
        self.bonus = nn.Parameter(torch.zeros(heads)) if learned else None

    def reset_parameters(self) -> None:
        if self.gate is not None and self.bonus is not None:
            self.gate.reset_parameters()
            nn.init.zeros_(self.bonus)

    def tokens(self, x: Tensor, k: Tensor | None = None) -> Weights:
        """A token's score, [B, T, H]; with "decay" the logarithm of the share of its weight that each token leaves."""
        assert k is not None
        if self.gate is None:
            return {"score": -widen(k).norm(dim=-1).repeat_interleave(self.heads // k.shape[2], -1)}
        score = self.gate(x, k)
        return {"score": F.logsigmoid(score) if self.options.choose == "decay" else score}

    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        assert like is not None
        size = (rows, self.heads, self.options.tokens)
        wide = {"dtype": widen(like[:0]).dtype, "device": like.device}
        newest = {} if self.options.follow is None else {NEWEST: torch.full((rows, self.heads, 1, 1), EMPTY, **wide)}
        return newest | {
            "keys": like.new_zeros(*size, self.dim),
            "values": like.new_zeros(*size, self.dim),
            "scores": torch.full((*size, 1), EMPTY, **wide),
            "positions": torch.full((*size, 1), -1, dtype=torch.int32, device=like.device),
        }

    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        places = extra["positions"][:, None, :, None].expand(*k.shape[:3], 1).to(torch.int32)
        scores = self._scores(extra, places)
        new = {"keys": k, "values": v, "scores": self._followed(state, scores), "positions": places}
        stream = {name: torch.cat([state[name], new[name]], 2) for name in new}
        newest = {} if self.options.follow is None else {NEWEST: scores[:, :, -1:]}
        return best(stream, self._order(stream), self.options.tokens) | newest

    def _followed(self, state: Weights, scores: Tensor) -> Tensor:
        """[B, H, C, 1]: no token far below the one before it. A copy ends with what came after its last token."""
        if self.options.follow is None:
            return scores
        before = torch.cat([state[NEWEST], scores[:, :, :-1]], 2)
        return torch.maximum(scores, before - self.options.follow)

    def _scores(self, extra: Weights, places: Tensor) -> Tensor:
        if self.options.choose == "recent":
            return places.to(extra["score"].dtype)
        return extra["score"].transpose(1, 2)[..., None]

    def _order(self, stream: Weights) -> Tensor:
        """By what the tokens compete, [B, H, N]: the score itself, or with "decay" what age has left of it.

        Equal tokens have equal scores but for rounding, which another cut of the text changes: the grid hides it.
        """
        scores, places = stream["scores"].detach()[..., 0], stream["positions"][..., 0]
        if self.options.choose != "decay":
            return torch.round(scores * GRID)
        age = places.amax(-1, keepdim=True) - places + 1
        return torch.round(torch.where(places < 0, scores, scores * age) * GRID)

    def readable(self, state: Weights) -> Weights:
        """With "bias" [B, H, M, 1], what the score adds to a token's logit; 0 where no token is kept."""
        if self.bonus is None:
            return state
        bias = torch.where(state["positions"] < 0, 0.0, state["scores"]) * self.bonus[:, None, None]
        return state | {"bias": bias}
