"""Reading a slot: a layer's queries against a trace, normalised, mapped, gated and joined to its attention.

Shapes: B rows, T tokens, Hq query heads, H state heads, d head width, D model width.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..memory.base import affine
from ..memory.slot import Features, Rotary, Run, Trace
from ..plan import ModelShape, Slot
from .readmap import build_map

CONVEX_BIAS = -4.0  # a share of 2 % for the memory at the start (Titan-Llama, arXiv 2510.19210)


class SlotReader(nn.Module):
    """One layer's way of reading one slot: query features, per-head norm, read map, gate."""

    def __init__(self, slot: Slot, shape: ModelShape):
        super().__init__()
        self.slot = slot
        self.state_heads = shape.query_heads if slot.heads == "q" else shape.kv_heads
        self.queries = Features(slot, shape.query_heads, shape.head_dim)
        self.norm_weight = nn.Parameter(torch.ones(shape.head_dim)) if slot.norm else None
        self.map = build_map(slot.map, shape.query_heads, shape.head_dim)
        outputs = shape.query_heads * (1 if slot.mix == "add" else shape.head_dim)
        self.gate_weight = nn.Parameter(torch.zeros(outputs, shape.hidden))
        self.gate_bias = nn.Parameter(torch.zeros(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.norm_weight is not None:
            nn.init.ones_(self.norm_weight)
        nn.init.zeros_(self.gate_weight)
        nn.init.constant_(self.gate_bias, 0.0 if self.slot.mix == "add" else CONVEX_BIAS)

    def forward(
        self, attended: Tensor, x: Tensor, q: Tensor, trace: Trace, positions: Tensor, rotary: Rotary
    ) -> Tensor:
        """Attention joined with memory: [B, Hq, T, d].

        attended: [B, Hq, T, d]; x: [B, T, D] layer input; q: [B, Hq, T, d] before RoPE; positions: [B or 1, T].
        Tokens for which nothing was written come back as they are, to the bit, while the slot is `silent`.
        """
        runs = trace.runs()
        if self.slot.silent and not any(any(run.written) for run in runs):
            return attended
        answers = self.answers(runs, q, trace, positions, rotary)
        answers = answers if self.map is None else self.map(answers)
        gate = self._gate(x, runs)
        if self.slot.mix == "add":
            return attended + (gate * answers).to(attended.dtype)
        return attended + (gate * (answers - attended)).to(attended.dtype)

    def answers(self, runs: list[Run], q: Tensor, trace: Trace, positions: Tensor, rotary: Rotary) -> Tensor:
        """What the slot answers, before map and gate: [B, Hq, T, d]; zero where a silent slot holds nothing yet."""
        queries = self.queries(q, positions, rotary)
        return torch.cat([self._answer(run, queries, trace) for run in runs], 2)

    def _answer(self, run: Run, queries: Tensor, trace: Trace) -> Tensor:
        """Normalised answers [B, Hq, run, d]; zero where the run has nothing to read."""
        part = queries[:, :, run.first : run.last]
        if self.slot.silent and not any(run.written):
            return torch.zeros_like(part)
        grouped = part.reshape(part.shape[0], self.state_heads, -1, part.shape[-1])
        answer = trace.rule.read(run.state, grouped).view(part.shape)
        if self.norm_weight is None:
            return answer
        return F.rms_norm(answer, answer.shape[-1:], self.norm_weight, eps=1e-6)

    def _gate(self, x: Tensor, runs: list[Run]) -> Tensor:
        """[B, Hq, T, 1 or d]; zero, by selection and not by a product, where nothing was written."""
        raw = affine(x, self.gate_weight, self.gate_bias)
        gate = F.silu(raw) if self.slot.mix == "add" else torch.sigmoid(raw)
        gate = gate.unflatten(-1, (self.queries.scale.shape[0], -1)).transpose(1, 2)
        if not self.slot.silent or all(all(run.written) for run in runs):
            return gate
        flags = [torch.tensor(run.written, device=x.device)[:, None].expand(-1, run.last - run.first) for run in runs]
        return torch.where(torch.cat(flags, 1)[:, None, :, None], gate, gate.new_zeros(()))
