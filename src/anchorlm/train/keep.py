"""What a gate of kept tokens learns from the teacher: the highest attention that a token will ever get from afar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core import UserError
from ..ops.heads import pick
from ..ops.kept import far_attention
from ..ops.window import rotate
from ..plan import Plan, Reach
from ..rules import KeptOptions
from .losses import Needs, Pass, View

FLOOR = 1e-3  # added to an attention before its logarithm: what lies below is all the same
EMPHASIS = 20.0  # an error at a token with attention a counts 1 + EMPHASIS a times


@dataclass(frozen=True)
class Keep:
    """Squared error of each gate against log(highest far attention + FLOOR), under the teacher's own inputs.

    model: the hybrid whose gates are trained. A token that no later query of its text
    finds beyond the window is not counted, nor is one that stays visible as a sink.
    """

    model: Any
    slots: tuple[str, ...]
    weight: float = 1.0
    name: str = "keep"
    student: Pass = "none"

    @property
    def needs(self) -> Needs:
        return Needs(inputs=tuple(self.model.plan.slots[name].write for name in self.slots))

    def totals(self, view: View) -> Tensor:
        """[slots] summed weights of the counted tokens."""
        return torch.stack([self._weights(*self._wanted(name, view)).sum() for name in self.slots])

    def sums(self, view: View) -> Tensor:
        """[slots] weighted squared errors."""
        return torch.stack([self._errors(name, view) for name in self.slots])

    @staticmethod
    def _weights(wanted: Tensor, counted: Tensor) -> Tensor:
        return torch.where(counted, 1 + EMPHASIS * wanted, 0.0)

    def _errors(self, name: str, view: View) -> Tensor:
        wanted, counted = self._wanted(name, view)
        attention = self._attention(name)
        x = view.inputs[self.model.plan.slots[name].write]
        writer = attention.writers[name]
        k = pick(attention.project(x)[1], writer.taken, attention.shape.kv_heads)
        scores = writer.memory.tokens(x, k.transpose(1, 2))["score"]
        return (self._weights(wanted, counted) * (scores - torch.log(wanted + FLOOR)).square()).sum()

    def _attention(self, name: str) -> Any:
        return self.model.backbone.model.layers[self.model.plan.slots[name].write].self_attn

    @torch.no_grad()
    def _wanted(self, name: str, view: View) -> tuple[Tensor, Tensor]:
        """The far attention of every token [B, T, H], and which of them count."""
        attention, layer = self._attention(name), self.model.plan.slots[name].write
        reach, x = reader_reach(self.model.plan, name), view.inputs[layer]
        text, place = documents(view.mask, view.starts)
        taken, count = attention.writers[name].taken, attention.shape.kv_heads
        q, k = (pick(new, taken, count) for new in attention.project(x)[:2])
        angles = self.model.backbone.model.rotary_emb(x, place)
        found = far_attention(rotate(q, *angles), rotate(k, *angles), attention.scale, text, place, reach.window)
        found = found.repeat_interleave(attention.writers[name].heads // k.shape[1], 1).transpose(1, 2)
        last = torch.stack([place.masked_fill(text != t, 0).amax(1) for t in range(int(text.max()) + 1)], 1)
        ends = last.gather(1, text.clamp(min=0))
        counted = (text >= 0) & (place >= reach.sinks) & (place + reach.window <= ends)
        return found, counted[..., None].expand_as(found)


def documents(mask: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Number of each token's document in its row [B, T], -1 for padding, and its place in the document [B, T]."""
    order = mask.long().cumsum(1) - 1
    begins = torch.zeros_like(mask) if starts is None else starts & mask
    text = begins.long().cumsum(1)
    first = torch.where(begins, order, 0).cummax(1).values
    return text.masked_fill(~mask, -1), (order - first).clamp(min=0)


def reader_reach(plan: Plan, name: str) -> Reach:
    """The narrowest window of the slot's readers: what lies beyond it is far. The writer may see more, or nothing."""
    return min((plan.layers[layer] for layer in plan.slots[name].read), key=lambda reach: reach.window or 0)


def check_gates(plan: Plan, length: int, stages: Mapping[str, Any]) -> None:
    """Raise UserError when rows of `length` tokens are too short for a gate to learn what is attended to from afar.

    stages: the settings of every active stage.
    """
    gates = gated_slots(plan)
    if not gates or not any(stage.w_keep for stage in stages.values()):
        return
    window = min(reader_reach(plan, name).window or 0 for name in gates)
    if length <= window:
        raise UserError(f"data.length is {length}; w_keep needs rows longer than the window, {window}")


def gated_slots(plan: Plan) -> tuple[str, ...]:
    """The slots with a gate that can learn from the teacher's attention."""
    return tuple(
        name
        for name, slot in plan.slots.items()
        if isinstance(slot.rule_options, KeptOptions) and slot.rule_options.choose == "gate"
    )
