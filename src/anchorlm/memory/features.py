"""Keys and queries as a memory sees them. Shapes: B rows, H heads, T tokens, d head width, f feature width."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..ops.wide import widen
from ..ops.window import rotate
from ..plan import Slot

Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]


def placed(u: Tensor, slot: Slot, positions: Tensor | None, rotary: Rotary | None) -> Tensor:
    """u [B, H, T, d] with the positions [B or 1, T] that the slot wants; without rotary it has them already."""
    if slot.rope == "none" or rotary is None or positions is None:
        return u
    cos, sin = rotary(positions % slot.chunk if slot.rope == "chunk" else positions)
    return rotate(u, cos.to(u.dtype), sin.to(u.dtype))


class Features(nn.Module):
    """An own scale and offset, an activation, unit length, perhaps RoPE."""

    def __init__(self, slot: Slot, heads: int, dim: int):
        super().__init__()
        self.slot, self.length = slot, slot.rule_options.key_length(dim)
        self.scale = nn.Parameter(torch.ones(heads, 1, dim))
        self.offset = nn.Parameter(torch.zeros(heads, 1, dim))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def forward(self, u: Tensor, positions: Tensor | None = None, rotary: Rotary | None = None) -> Tensor:
        """[B, H, T, d] in fp32 or wider, from pre-RoPE u [B, H, T, d] at positions [B or 1, T]."""
        u = widen(u) * self.scale + self.offset
        u = F.silu(u) if self.slot.act == "silu" else u
        u = F.normalize(u, dim=-1, eps=1e-6) * self.length
        return placed(u, self.slot, positions, rotary)


class HedgehogMap(nn.Module):
    """softmax(u W) beside softmax(-u W), W [H, d, m] for each head: f = 2 m positive features (arXiv 2402.04347).

    W starts as the identity, cut to m columns. "exp" leaves the division out of each half, relative to its highest
    entry so that nothing overflows.
    """

    def __init__(self, slot: Slot, heads: int, dim: int):
        super().__init__()
        self.slot, self.kind = slot, slot.rule_options.features
        self.weight = nn.Parameter(torch.empty(heads, dim, slot.rule_options.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if getattr(self.weight, "_is_hf_initialized", False):  # filled from a checkpoint: transformers' own mark
            return
        with torch.no_grad():
            self.weight.copy_(torch.eye(*self.weight.shape[1:], dtype=self.weight.dtype).expand_as(self.weight))

    def forward(self, u: Tensor, positions: Tensor | None = None, rotary: Rotary | None = None) -> Tensor:
        """[B, H, T, f] in fp32 or wider, every entry at least 1e-12."""
        z = widen(placed(u, self.slot, positions, rotary)) @ widen(self.weight)
        return torch.cat([self._half(z), self._half(-z)], -1).clamp(min=1e-12)

    def _half(self, z: Tensor) -> Tensor:
        return torch.softmax(z, -1) if self.kind == "softmax" else torch.exp(z - z.amax(-1, keepdim=True))


class SoftmaxMap(nn.Module):
    """Softmax over the channels of each head; no parameter (Liger, arXiv 2503.01496)."""

    def __init__(self, slot: Slot, heads: int, dim: int):
        super().__init__()
        self.slot = slot

    def forward(self, u: Tensor, positions: Tensor | None = None, rotary: Rotary | None = None) -> Tensor:
        return torch.softmax(widen(placed(u, self.slot, positions, rotary)), -1)


class PlainMap(SoftmaxMap):
    """Keys and queries as the backbone projects them."""

    def forward(self, u: Tensor, positions: Tensor | None = None, rotary: Rotary | None = None) -> Tensor:
        return widen(placed(u, self.slot, positions, rotary))
