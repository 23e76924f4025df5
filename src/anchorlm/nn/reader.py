"""Reading a slot: a layer's queries against a trace, normalised, mapped and joined to its attention.

Shapes: B rows, T tokens, Hq query heads, d head width, D model width.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..memory.base import Memory, check_read
from ..memory.features import Rotary
from ..memory.trace import StreamTrace, Trace
from ..ops.partials import Partial
from ..ops.wide import widen
from ..plan import ModelShape, Slot
from .mix import MIXERS, Mixer, gate_input
from .readmap import build_map


class SlotReader(nn.Module):
    """One layer's way of reading one slot: query features, per-head norm, read map, mixer."""

    def __init__(self, slot: Slot, shape: ModelShape):
        super().__init__()
        self.slot, self.mix = slot, slot.mix
        self.state_heads = slot.state_heads(shape)
        feature_map = Memory.rules[slot.rule].feature_map
        assert feature_map is not None, "exact tokens have a reader of their own"
        self.queries = feature_map(slot, shape.query_heads, shape.head_dim)
        self.norm_weight = nn.Parameter(torch.ones(shape.head_dim)) if slot.norm else None
        self.map = build_map(slot.map, shape.query_heads, shape.head_dim)
        self.starts = MIXERS[slot.mix.kind].starts(slot.mix, shape)
        for name, (size, _) in self.starts.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))
        self.reset_parameters()

    @property
    def mixer(self) -> Mixer:
        return MIXERS[self.mix.kind]

    def reset_parameters(self) -> None:
        if self.norm_weight is not None:
            nn.init.ones_(self.norm_weight)
        for name, (_, number) in self.starts.items():
            nn.init.constant_(getattr(self, name), number)

    def forward(
        self, attended: Partial, x: Tensor, q: Tensor, trace: Trace | StreamTrace, positions: Tensor, rotary: Rotary
    ) -> Partial:
        """Attention joined with memory, or with mix "residual" the memory's answers alone: [B, Hq, T, d].

        attended: [B, Hq, T, d]; x: [B, T, D] layer input; q: [B, Hq, T, d] before RoPE; positions: [B or 1, T].
        Tokens for which nothing was written come back as they are, to the bit, while the slot is `silent`.
        """
        after = self.mix.kind == "residual"
        if self.slot.silent and trace.empty:
            return Partial(torch.zeros_like(q)) if after else attended
        memory = self.answers(q, trace, positions, rotary)
        if self.map is not None:  # a map is linear: it may act before the division
            memory = memory._replace(summed=self.map(memory.summed))
        joined = self.mixer.join(self, attended, memory, gate_input(self.mix, x, q))
        written = trace.written(x.device) if self.slot.silent and not self.mixer.on_sums else None
        if written is None:
            return joined
        near = torch.zeros_like(q) if after else attended.answer
        return Partial(torch.where(written[:, None, :, None], joined.answer, near))

    def answers(self, q: Tensor, trace: Trace | StreamTrace, positions: Tensor, rotary: Rotary) -> Partial:
        """What the slot answers, normalised, before map and mixer: [B, Hq, T, d]."""
        read = trace.read(self.queries(q, positions, rotary), self.slot.silent)
        check_read(Memory.rules[self.slot.rule], read, q.shape, q.dtype)
        if self.norm_weight is None:
            return read
        answer = widen(read.answer)
        return Partial(F.rms_norm(answer, answer.shape[-1:], self.norm_weight, eps=1e-6))

    def project(self, answers: Tensor) -> Tensor:
        """What mix "residual" adds after the output projection: [B, T, D] from answers [B, Hq, T, d]."""
        return F.linear(widen(answers.transpose(1, 2).flatten(2)), widen(self.out_weight))


class MetaLogits(nn.Module):
    """Learned logits that take part in attention's denominator alone (Lizard's meta tokens, arXiv 2507.09025)."""

    def __init__(self, count: int):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(count))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.logits)

    def partial(self, like: Partial) -> Partial:
        """Their share of a softmax: a mass and no value. like: the attention they take part in."""
        logits = widen(self.logits)
        peak = logits.max()
        mass = torch.exp(logits - peak).sum()
        return Partial(like.summed.new_zeros(()), mass.view(1, 1, 1, 1), peak.view(1, 1, 1, 1))
