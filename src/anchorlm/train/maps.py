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


Pair = tuple[str, int]


def mapped_readers(plan: Plan) -> tuple[Pair, ...]:
    """(slot, layer) of every reader that puts a slot under one normaliser with its window."""
    return tuple((name, layer) for name, slot in plan.slots.items() if slot.mix.kind == "shared" for layer in slot.read)


@dataclass(frozen=True)
class AttentionMaps:
    """Cross-entropy between the teacher's attention map and the student's, in nats a query (LoLCATs, arXiv 2410.10254).

    model: the hybrid. Each layer is given the teacher's own input; what another layer wrote is weighed by that layer's
    keys. The maps of one layer exist at a time, T x T numbers a head, and again on the way back.
    """

    model: Any
    readers: tuple[Pair, ...]
    weight: float = 1.0
    name: str = "maps"
    student: Pass = "none"

    @property
    def needs(self) -> Needs:
        layers = {layer for pair in self.readers for layer in (self._writer_of(pair[0]), pair[1])}
        return Needs(inputs=tuple(sorted(layers)))

    def totals(self, view: View) -> Tensor:
        """[readers] queries that count, times heads."""
        return (view.mask.sum() * self.model.shape.query_heads).float().expand(len(self.readers))

    def sums(self, view: View) -> Tensor:
        """[readers] summed cross-entropies."""
        return torch.stack([checkpoint(self._entropy, *pair, view, use_reentrant=False) for pair in self.readers])

    def _writer_of(self, name: str) -> int:
        return self.model.plan.slots[name].write

    def _entropy(self, name: str, layer: int, view: View) -> Tensor:
        text, place = documents(view.mask, view.starts)
        config = self.model.backbone.config
        own, theirs = (families.cut(r, config, layer) for r in ((view.plan or self.model.plan).layers[layer], Reach()))
        same = (text[:, :, None] == text[:, None, :]) & (text[:, None, :] >= 0)
        sees, near = same & visible(place, place, theirs), same & visible(place, place, own)
        with torch.no_grad():
            q, k = self._turned(layer, view, place)
            wanted = torch.softmax(self._scores(layer, q, k, sees), -1)
        found = torch.log(self._student((name, layer), own, view, place, near, sees & ~near).clamp(min=TINY))
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

    def _student(self, pair: Pair, own: Reach, view: View, place: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """The share [B, Hq, T, T] that each query gives each token: softmax in its window, features behind it."""
        name, layer = pair
        source, rope = self._writer_of(name), own.positions == "rope"
        reader, writer = self._attention(layer).readers[name], self._attention(source).writers[name]
        q, k = self._turned(layer, view, place, rope)
        scores = self._scores(layer, q, k, near)
        raised = torch.exp(scores - scores.amax(-1, keepdim=True)).masked_fill(~near[:, None], 0.0)
        repeats = q.shape[1] // writer.heads
        written = k if source == layer else self._turned(source, view, place, rope)[1]
        features = writer.keys(written[:, ::repeats]).repeat_interleave(repeats, 1)
        linear = (reader.queries(q) @ features.transpose(-1, -2)).masked_fill(~far[:, None], 0.0)
        share, rest = shared_weights(reader)
        total = share * raised + rest * linear
        return total / total.sum(-1, keepdim=True).clamp(min=TINY)
