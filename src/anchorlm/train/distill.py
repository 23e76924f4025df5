"""Distillation: the student's next-token distribution against the teacher's, without ever holding all logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .losses import CHUNK_ELEMENTS, Needs, Pass, View, next_token_places, wide


class _LinearDivergence(torch.autograd.Function):
    """sum(counts * KL(teacher || student)) with its gradient made chunk by chunk on the way forward."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, weight: Tensor, rows: int, heat: float, counts: Tensor | None
    ) -> Tensor:
        grad = torch.empty_like(student) if ctx.needs_input_grad[0] else None
        total = student.new_zeros((), dtype=wide(student.dtype))
        for start in range(0, len(student), rows):
            part = slice(start, start + rows)
            ours, theirs = ((x[part] @ weight.T).to(total.dtype).div_(heat) for x in (student, teacher))  # [rows, V]
            ours, theirs = ours.log_softmax(-1), theirs.log_softmax(-1)
            likely = theirs.exp()
            share = 1.0 if counts is None else counts[part, None].to(total.dtype)
            total += (share * theirs.sub_(ours).mul_(likely).sum(-1, keepdim=True)).sum()
            if grad is not None:
                grad[part] = ours.exp_().sub_(likely).mul_(share).div_(heat).to(weight.dtype) @ weight
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return (None if grad is None else grad * grads[0].to(grad.dtype), *[None] * 5)


def linear_divergence(
    student: Tensor,
    teacher: Tensor,
    weight: Tensor,
    temperature: float = 1.0,
    elements: int = CHUNK_ELEMENTS,
    counts: Tensor | None = None,
) -> Tensor:
    """Sum of KL(teacher || student) in nats over N tokens, from hidden states [N, D] and one head's weight [V, D].

    Both distributions are softened by `temperature`. counts [N]: what each token is multiplied by. At most `elements`
    logits exist at a time, those of both sides and the values made from them taken together. Only `student` takes a
    gradient.
    """
    rows = max(1, elements // (4 * weight.shape[0]))
    return _LinearDivergence.apply(student, teacher, weight, rows, temperature, counts)


@dataclass(frozen=True)
class Distillation:
    """Divergence from the teacher's next-token distribution, in nats a token, times temperature squared.

    The square keeps gradients of one size whatever the temperature (Hinton et al., arXiv 1503.02531). Counted are the
    same tokens as in cross-entropy, with the same weights.
    """

    head: torch.nn.Linear
    weight: float = 1.0
    temperature: float = 1.0
    name: str = "kl"
    needs: Needs = Needs(hidden=True)
    student: Pass = "free"

    def totals(self, view: View) -> Tensor:
        """[1] summed weights of the counted tokens."""
        _, target = next_token_places(view.mask, view.starts)
        counts = (
            torch.ones_like(target, dtype=torch.float32) if view.weights is None else view.weights.flatten()[target]
        )
        return counts.sum()[None]

    def sums(self, view: View) -> Tensor:
        """[1] weighted divergences."""
        source, target = next_token_places(view.mask, view.starts)
        assert view.hidden is not None and view.aim is not None, "student and teacher have not run"
        counts = None if view.weights is None else view.weights.flatten()[target]
        ours, theirs = view.hidden.flatten(0, 1)[source], view.aim.flatten(0, 1)[source]
        found = linear_divergence(ours, theirs, self.head.weight, self.temperature, counts=counts)
        return self.temperature**2 * found[None]
