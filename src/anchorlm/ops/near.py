"""What a layer's attention has at hand in one call, and which tokens leave it: those a memory takes over.

Shapes: B rows, Hkv KV heads, n cached tokens, T new tokens, d head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..plan import Reach
from .chunks import Chunks, take
from .rows import Span


@dataclass(frozen=True)
class Near:
    """Keys and values [B, Hkv, n + T, d] as attention uses them, the cached tokens first, and the sinks [B, Hkv, s, d].

    Column j of a row that stands at position p is its token p - n + j; a negative number is an empty column.
    """

    reach: Reach
    keys: Tensor
    values: Tensor
    cached: int
    sink_keys: Tensor | None = None
    sink_values: Tensor | None = None

    def leaving(self, span: Span) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens that leave a sliding window, [B, Hkv, T, d] each: entry i is the last one that query i sees.

        It is first out of sight of query i + 1. valid [B, T]: false where there is no such token.
        """
        assert self.reach.window is not None
        back = self.reach.window - 1
        taken = [F.pad(x, (0, 0, back - self.cached, 0))[:, :, : span.width] for x in (self.keys, self.values)]
        device = self.keys.device
        valid = (span.positions(device) >= back) & span.real(device)
        return taken[0], taken[1], valid

    def stream(self, chunks: Chunks) -> Tensor:
        """Keys beside values [B, S, Hkv, 2 d] from the first token that stands in no state, each row without a hole."""
        kv = torch.cat([self.keys, self.values], -1).transpose(1, 2)
        held = max(chunks.filled)
        column = torch.arange(held, device=kv.device)
        first = self.cached - torch.tensor(chunks.filled, device=kv.device)[:, None]
        buffer = take(kv, (first + column).clamp(max=max(0, self.cached - 1))) if held else None
        return chunks.join(buffer, kv[:, self.cached :])
