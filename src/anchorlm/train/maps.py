"""Attention maps: how each token of a LoLCATs layer shares its attention, against the teacher's, as a cross-entropy.

Shapes: B rows, T tokens, Hq query heads, d head width, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..hf import families
from ..nn.mix import shared_weights
from ..ops.wide import widen
from ..ops.window import rotate, visible
from ..plan import Plan, Reach
from .keep import documents
from .losses import Needs, Pass, View

TINY = 1e-30  # below any weight that counts, above zero


def mapped_slots(plan: Plan) -> tuple[str, ...]:
    """The slots that lie under one normaliser with the window of the layer that writes and reads them."""
    return tuple(n for n, slot in plan.slots.items() if slot.mix.kind == "shared" and slot.read == (slot.write,))


@dataclass(frozen=True)
class AttentionMaps:
    """Cross-entropy between the teacher's attention map and the student's, in nats a query (LoLCATs, arXiv 2410.10254).

    model: the hybrid. Each layer is given the teacher's own input. The maps of one layer exist at a time, T x T numbers
    a head, and again on the way back.
    """

    model: Any
    slots: tuple[str, ...]
    weight: float = 1.0
    name: str = "maps"
    student: Pass = "none"

    @property
    def needs(self) -> Needs:
        return Needs(inputs=tuple(sorted(self.model.plan.slots[name].write for name in self.slots)))

    def totals(self, view: View) -> Tensor:
        """[slots] queries that count, times heads."""
        return (view.mask.sum() * self.model.shape.query_heads).float().expand(len(self.slots))

    def sums(self, view: View) -> Tensor:
        """[slots] summed cross-entropies."""
        return torch.stack([checkpoint(self._entropy, name, view, use_reentrant=False) for name in self.slots])

    def _entropy(self, name: str, view: View) -> Tensor:
        layer = self.model.plan.slots[name].write
        text, place = documents(view.mask, view.starts)
        config = self.model.backbone.config
        own, theirs = (families.cut(r, config, layer) for r in ((view.plan or self.model.plan).layers[layer], Reach()))
        same = (text[:, :, None] == text[:, None, :]) & (text[:, None, :] >= 0)
        sees, near = same & visible(place, place, theirs), same & visible(place, place, own)
        with torch.no_grad():
            q, k = self._turned(layer, view, place)
            wanted = torch.softmax(self._scores(layer, q, k, sees), -1)
        found = torch.log(self._student(name, own, view, place, near, sees & ~near).clamp(min=TINY))
        return -(wanted * found).masked_fill(~sees[:, None], 0.0).sum()

    def _turned(self, layer: int, view: View, place: Tensor, rope: bool = True) -> tuple[Tensor, Tensor]:
        """Queries and keys [B, Hq, T, d] as attention uses them."""
        q, k, _ = self._attention(layer).project(view.inputs[layer])
        if rope:
            angles = self.model.backbone.model.rotary_emb(q, place)
            q, k = rotate(q, *angles), rotate(k, *angles)
        return q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)

    def _attention(self, layer: int) -> Any:
        return self.model.backbone.model.layers[layer].self_attn

    def _scores(self, layer: int, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        scores = widen(q @ k.transpose(-1, -2) * self._attention(layer).scale)
        return scores.masked_fill(~seen[:, None], -1 / TINY)

    def _student(self, name: str, own: Reach, view: View, place: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """The share [B, Hq, T, T] that each query gives each token: softmax in its window, features behind it."""
        layer = self.model.plan.slots[name].write
        reader, writer = self._attention(layer).readers[name], self._attention(layer).writers[name]
        q, k = self._turned(layer, view, place, own.positions == "rope")
        scores = self._scores(layer, q, k, near)
        raised = torch.exp(scores - scores.amax(-1, keepdim=True)).masked_fill(~near[:, None], 0.0)
        repeats = q.shape[1] // writer.heads
        features = writer.keys(k[:, ::repeats]).repeat_interleave(repeats, 1)
        linear = (reader.queries(q) @ features.transpose(-1, -2)).masked_fill(~far[:, None], 0.0)
        share, rest = shared_weights(reader)
        total = share * raised + rest * linear
        return total / total.sum(-1, keepdim=True).clamp(min=TINY)
