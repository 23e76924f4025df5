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

    A gate that fades (`decay`) is asked at the window's age and at each doubling of it: its score times the age against
    what any query at least as late still gives.
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
        return torch.stack([self._sum(name, view) for name in self.slots])

    def sums(self, view: View) -> Tensor:
        """[slots] weighted squared errors."""
        return torch.stack([self._sum(name, view, self._scores(name, view)) for name in self.slots])

    def _sum(self, name: str, view: View, scores: Tensor | None = None) -> Tensor:
        """Of the weights, or with scores [B, T, H] of the weighted squared errors."""
        found = []
        key = f"{self.name}.{name}"
        if key not in view.found:
            view.found[key] = self._wanted(name, view)
        for times, wanted, counted in view.found[key]:
            weights = torch.where(counted, 1 + EMPHASIS * wanted, 0.0)
            errors = 1.0 if scores is None else (times * scores - torch.log(wanted + FLOOR)).square()
            found.append((weights * errors).sum())
        return torch.stack(found).sum()

    def _scores(self, name: str, view: View) -> Tensor:
        attention = self._attention(name)
        x = view.inputs[self.model.plan.slots[name].write]
        writer = attention.writers[name]
        k = pick(attention.project(x)[1], writer.taken, attention.shape.kv_heads)
        return writer.memory.tokens(x, k.transpose(1, 2))["score"]

    def _attention(self, name: str) -> Any:
        return self.model.backbone.model.layers[self.model.plan.slots[name].write].self_attn

    def _ages(self, name: str, tokens: int) -> list[tuple[int, int]]:
        """(age, what a score is multiplied by at that age): a gate's counts once, a decaying one's for every token."""
        window = reader_reach(self.model.plan, name).window or 0
        if self.model.plan.slots[name].rule_options.choose == "gate":
            return [(window, 1)]
        return [(age, age) for age in (max(window, 1) << power for power in range(tokens.bit_length())) if age < tokens]

    @torch.no_grad()
    def _wanted(self, name: str, view: View) -> list[tuple[int, Tensor, Tensor]]:
        """By age: what a score is multiplied by, each token's far attention [B, T, H], and which of them count."""
        attention, layer = self._attention(name), self.model.plan.slots[name].write
        sinks, x = reader_reach(self.model.plan, name).sinks, view.inputs[layer]
        text, place = documents(view.mask, view.starts)
        taken, count = attention.writers[name].taken, attention.shape.kv_heads
        q, k = (pick(new, taken, count) for new in attention.project(x)[:2])
        angles = self.model.backbone.model.rotary_emb(x, place)
        q, k, groups = rotate(q, *angles), rotate(k, *angles), attention.writers[name].heads // k.shape[1]
        last = torch.stack([place.masked_fill(text != t, 0).amax(1) for t in range(int(text.max()) + 1)], 1)
        ends, wanted = last.gather(1, text.clamp(min=0)), []
        for age, times in self._ages(name, x.shape[1]):
            found = far_attention(q, k, attention.scale, text, place, age).repeat_interleave(groups, 1).transpose(1, 2)
            counted = (text >= 0) & (place >= sinks) & (place + age <= ends)
            wanted.append((times, found, counted[..., None].expand_as(found)))
        return wanted


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
        if isinstance(slot.rule_options, KeptOptions) and slot.rule_options.choose in ("gate", "decay")
    )
