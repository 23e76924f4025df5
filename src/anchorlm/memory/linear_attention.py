"""Memories that are sums over tokens: a matrix per head that takes one token at a time and can fade.

Shapes: B rows, H state heads, R readers of each, T tokens, d head width, f feature width, m slots.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..linear_rules import GlaOptions, GsaOptions, HedgehogOptions
from ..ops import stream
from ..ops.partials import Partial
from ..ops.wide import widen
from .base import Memory, Weights, affine
from .features import HedgehogMap, PlainMap, SoftmaxMap

Read = Callable[[Tensor], Partial]


@dataclass(frozen=True)
class Timing:
    """How a run of writes is read. own: a token reads after its own write. size: tokens computed together; it changes
    no answer. detach: gradients flow through at most so many of these pieces; 0 through all."""

    own: bool
    size: int
    detach: int = 0


class StreamMemory(Memory):
    """A memory that is written one token at a time, by the chunk or in between."""

    streams = True

    def __init__(self, options: object, heads: int, dim: int, hidden: int, kv_heads: int = 0):
        super().__init__()
        self.options, self.heads, self.dim = options, heads, dim

    @abstractmethod
    def stream(
        self, state: Weights, k: Tensor, v: Tensor, extra: Weights, valid: Tensor | None, timing: Timing
    ) -> tuple[Weights, Read]:
        """Write T tokens and offer what each of them reads: (state after all, read).

        k [B, H, T, f], v [B, H, T, d] and extra as in `write`. valid [B or 1, T]: a token for which it is false leaves
        the state as it is, to the bit. read takes q [B, H, R, T, f] and gives a Partial of [B, H, R, T, ...].
        """
        raise NotImplementedError

    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        return self.stream(state, k, v, extra, None, Timing(True, k.shape[2]))[0]


def _only(valid: Tensor | None, x: Tensor) -> Tensor:
    """x [B, H, T, n] with zeros where valid is false."""
    return x if valid is None else x.masked_fill(~valid[:, None, :, None], 0.0)


def log_sigmoid_gate(x: Tensor, temperature: float) -> Tensor:
    """log of sigmoid(x)^(1 / temperature), at most 0."""
    return F.logsigmoid(widen(x)) / temperature


class HedgehogMemory(StreamMemory, rule="hedgehog"):
    """S [H, f, d + 1]: values, and ones beside them, summed with positive features (LoLCATs, arXiv 2410.10254).

    With a gate the whole state fades by one learned number a token (Lizard, arXiv 2507.09025).
    """

    feature_map = HedgehogMap
    options: HedgehogOptions

    def __init__(self, options: HedgehogOptions, heads: int, dim: int, hidden: int, kv_heads: int = 0):
        super().__init__(options, heads, dim, hidden)
        if options.gate == "scalar":
            self.fade_weight = nn.Parameter(torch.zeros(1, hidden))
            self.fade_bias = nn.Parameter(torch.empty(1))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.options.gate == "scalar":
            start = self.options.gate_start
            nn.init.zeros_(self.fade_weight)
            nn.init.constant_(self.fade_bias, math.log(start / (1 - start)))

    def tokens(self, x: Tensor, k: Tensor | None = None) -> Weights:
        if self.options.gate == "none":
            return {}
        return {"fade": F.logsigmoid(affine(x, self.fade_weight, self.fade_bias))}

    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        assert like is not None
        return {"s": widen(like[:0]).new_zeros(rows, self.heads, 2 * self.options.width, self.dim + 1)}

    def stream(
        self, state: Weights, k: Tensor, v: Tensor, extra: Weights, valid: Tensor | None, timing: Timing
    ) -> tuple[Weights, Read]:
        fade = _only(valid, extra["fade"][:, None]) if "fade" in extra else None
        k = _only(valid, k)
        values = F.pad(widen(v), (0, 1), value=1.0)
        found = stream.run(state["s"], k, values, fade, timing.size, timing.own, detach=timing.detach)
        return {"s": found.last}, lambda q: _divided(found.read(q))

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        return _divided(q @ readable["s"])


def _divided(summed: Tensor) -> Partial:
    """The last column is the sum of the weights."""
    return Partial(summed[..., :-1], summed[..., -1:])


class GlaMemory(StreamMemory, rule="gla"):
    """S [H, d, d] fades channel by channel, by a gate that is the key itself (Liger, arXiv 2503.01496)."""

    feature_map = SoftmaxMap
    options: GlaOptions

    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        assert like is not None
        return {"s": widen(like[:0]).new_zeros(rows, self.heads, self.dim, self.dim)}

    def stream(
        self, state: Weights, k: Tensor, v: Tensor, extra: Weights, valid: Tensor | None, timing: Timing
    ) -> tuple[Weights, Read]:
        fade = self._fade(extra["raw"])
        k = _only(valid, -torch.expm1(fade) if self.options.variant == "hgrn2" else k)
        fade = _only(valid, fade)
        found = stream.run(state["s"], k, widen(v), fade, timing.size, timing.own, detach=timing.detach)
        return {"s": found.last}, lambda q: Partial(found.read(q))

    def _fade(self, raw: Tensor) -> Tensor:
        """The logarithm of the gate, [B, H, T, d or 1]."""
        keys = widen(raw)
        if self.options.variant == "scalar":
            keys = keys.mean(-1, keepdim=True)
        return log_sigmoid_gate(keys, self.options.temperature)

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        return Partial(q @ readable["s"])


class GsaMemory(StreamMemory, rule="gsa"):
    """m slots a head: keys [H, d, m], transposed, and values [H, m, d], gated by the pooled key (arXiv 2409.07146)."""

    feature_map = PlainMap
    options: GsaOptions

    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        assert like is not None
        size, zeros = self.options.slots, widen(like[:0]).new_zeros
        return {"k": zeros(rows, self.heads, self.dim, size), "v": zeros(rows, self.heads, size, self.dim)}

    def stream(
        self, state: Weights, k: Tensor, v: Tensor, extra: Weights, valid: Tensor | None, timing: Timing
    ) -> tuple[Weights, Read]:
        fade = log_sigmoid_gate(self._pooled(widen(extra["raw"])), self.options.temperature)
        fade = _only(valid, fade)
        taken = -torch.expm1(fade)  # 0 where nothing fades
        given = (fade, timing.size, timing.own)
        keys = stream.run(state["k"], k, taken, *given, axis="values", detach=timing.detach)
        values = stream.run(state["v"], taken, widen(v), *given, detach=timing.detach)
        scale = self.dim**-0.5
        return {"k": keys.last, "v": values.last}, lambda q: Partial(
            values.read(torch.softmax(keys.read(q) * scale, -1))
        )

    def _pooled(self, keys: Tensor) -> Tensor:
        """[B, H, T, m]: each slot's gate is the mean of a stretch of key channels."""
        return F.adaptive_avg_pool1d(keys.flatten(0, 2)[:, None], self.options.slots)[:, 0].unflatten(0, keys.shape[:3])

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        shares = torch.softmax(q @ readable["k"] * q.shape[-1] ** -0.5, -1)
        return Partial(shares @ readable["v"])
