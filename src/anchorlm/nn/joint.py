"""Reading exact tokens: they join the softmax of the reading layer's own attention.

Shapes: B rows, T tokens, Hq query heads, H state heads, M kept tokens, d head width.
"""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from ..memory.features import Rotary
from ..memory.trace import Run, Trace
from ..ops.heads import pick, replaced
from ..ops.kept import attend_kept
from ..ops.partials import Partial, concatenate, join
from ..ops.window import rotate
from ..plan import ModelShape, Reach, Slot
from .readmap import build_map


class JointReader(nn.Module):
    """One layer's way of reading kept tokens: beside its window and sinks, under one normaliser.

    A token still inside the window, or a sink, is not seen a second time.
    """

    def __init__(self, slot: Slot, shape: ModelShape):
        super().__init__()
        self.slot, self.taken, self.kv_heads = slot, slot.taken(shape), shape.kv_heads
        self.map = build_map(slot.map, shape.query_heads * len(self.taken) // shape.kv_heads, shape.head_dim)

    def forward(
        self, attended: Partial, q: Tensor, trace: Trace, positions: Tensor, rotary: Rotary, reach: Reach, scale: float
    ) -> Partial:
        """Attention over window, sinks and kept tokens. q: [B, Hq, T, d] before RoPE; positions: [B or 1, T].

        Query heads of a KV head that the slot does not take come back as they are.
        """
        kept = self.answers(q, trace, positions, rotary, reach, scale)
        if self.map is not None:
            kept = kept._replace(summed=self.map(kept.summed).to(kept.summed.dtype))
        return replaced(attended, self.taken, self.kv_heads, lambda part: join(part, kept))

    def answers(
        self, q: Tensor, trace: Trace, positions: Tensor, rotary: Rotary, reach: Reach, scale: float
    ) -> Partial:
        """Attention of the heads that the slot takes over its kept tokens alone, before the map.

        Its peak is UNSEEN where a query sees none of them.
        """
        turned = self._turn_queries(pick(q, self.taken, self.kv_heads), positions, rotary, reach)
        parts = [
            self._read(
                run, turned[:, :, run.first : run.last], positions[:, run.first : run.last], rotary, reach, scale
            )
            for run in trace.runs()
        ]
        return concatenate(parts)

    @property
    def compact(self) -> bool:
        return self.slot.rule_options.positions == "compact"

    def _turn_queries(self, q: Tensor, positions: Tensor, rotary: Rotary, reach: Reach) -> Tensor:
        """Compact: every query stands one window behind the last kept token; only distances matter."""
        if self.compact:
            place = self.slot.rule_options.tokens - 1 + (reach.window or 0)
            positions = torch.full((1, 1), place, device=q.device)
        return rotate(q, *rotary(positions))

    def _turn_keys(self, k: Tensor, places: Tensor, rotary: Rotary) -> Tensor:
        if self.compact:
            return rotate(k, *rotary(torch.arange(k.shape[2], device=k.device)[None]))
        rows = k.flatten(0, 1)[:, None]
        return rotate(rows, *rotary(places.flatten(0, 1)[..., 0].clamp(min=0).long())).view(k.shape)

    def _read(self, run: Run, q: Tensor, positions: Tensor, rotary: Rotary, reach: Reach, scale: float) -> Partial:
        state, places = run.state, run.state["positions"]
        ages = positions[:, None, :, None] - places.transpose(-1, -2)
        seen = (places.transpose(-1, -2) >= reach.sinks) & (ages >= (reach.window or 0))
        keys = self._turn_keys(state["keys"], places, rotary)
        return attend_kept(q, keys, state["values"], seen, state.get("bias"), scale)
