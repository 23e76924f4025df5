"""Losses as sums over counted tokens; whoever has all the sums divides once.

A term yields a numerator that carries gradients and a total that does not. Adding both over the batches of a step
and dividing at the end gives a mean that padding, packing and accumulation cannot change.

Shapes: B rows, T tokens, D model width, V vocabulary, N counted pairs, A layers that differ from the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..plan import Plan

CHUNK_ELEMENTS = 1 << 22  # logits that exist at a time, 16 MiB in float32: larger buffers are fetched anew each time


@dataclass
class View:
    """What the terms may look at: one batch and what teacher and student made of it."""

    input_ids: Tensor  # [B, T]
    mask: Tensor  # [B, T] True where a token counts
    starts: Tensor | None = None  # [B, T] True at the first token of a document
    hidden: Tensor | None = None  # [B, T, D] student
    outputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> [B, T, Hq * d] student, before o_proj
    teacher: dict[int, Tensor] = field(default_factory=dict)  # the same of the teacher
    inputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> [B, T, D] the teacher's normalised input
    aim: Tensor | None = None  # [B, T, D] last hidden states of the teacher
    weights: Tensor | None = None  # [B, T] what a token counts as a target; None when all count 1
    plan: Plan | None = None  # that the student runs under; None is its own
    found: dict[str, Any] = field(default_factory=dict)  # what a term works out once, for its totals and its sums

    def release(self) -> None:
        """Let go of everything that was computed from the batch."""
        self.hidden, self.aim, self.outputs, self.teacher, self.inputs, self.found = None, None, {}, {}, {}, {}


@dataclass(frozen=True)
class Needs:
    """What a term looks at of the teacher; false when nothing."""

    outputs: tuple[int, ...] = ()  # layers whose attention outputs it compares
    inputs: tuple[int, ...] = ()  # layers whose inputs it uses
    hidden: bool = False  # last hidden states

    def __bool__(self) -> bool:
        return bool(self.outputs or self.inputs or self.hidden)

    def __or__(self, other: Needs) -> Needs:
        outputs, inputs = ({*a, *b} for a, b in ((self.outputs, other.outputs), (self.inputs, other.inputs)))
        return Needs(tuple(sorted(outputs)), tuple(sorted(inputs)), self.hidden or other.hidden)


# The student's pass that a term is measured in: it reads its text; each layer is fed the teacher's hidden states; none.
Pass = Literal["free", "fed", "none"]


class Term(Protocol):
    """One loss: `value = mean(sums / totals)`, both added over the batches of a step."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def needs(self) -> Needs: ...

    @property
    def student(self) -> Pass: ...

    def totals(self, view: View) -> Tensor: ...

    def sums(self, view: View) -> Tensor: ...


def next_token_pairs(input_ids: Tensor, mask: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Flat positions [N] whose hidden state predicts, and the tokens [N] they should predict."""
    source, target = next_token_places(mask, starts)
    return source, input_ids.flatten()[target]


def next_token_places(mask: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Flat positions [N] whose hidden state predicts, and those [N] of the tokens they should predict.

    Each counted token is paired with the next counted token of its row, over any padding between them. A token that
    starts a document is never a target: nothing before it belongs to its document.
    """
    length = mask.shape[1]
    counted = mask.bool().flatten().nonzero().squeeze(1)
    source, target = counted[:-1], counted[1:]
    keep = source // length == target // length
    if starts is not None:
        keep &= ~starts.bool().flatten()[target]
    return source[keep], target[keep]


class _LinearCrossEntropy(torch.autograd.Function):
    """sum(-log softmax(hidden @ weight.T)[target]) with its gradient made chunk by chunk on the way forward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int, counts: Tensor | None) -> Tensor:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide(weight.dtype)) if needs_weight else None
        total = hidden.new_zeros((), dtype=wide(hidden.dtype))
        for start in range(0, len(hidden), rows):
            part, wanted = hidden[start : start + rows], targets[start : start + rows]
            logits = (part @ weight.T).to(total.dtype)  # [rows, V]
            logits -= logits.amax(-1, keepdim=True)
            right = logits.gather(1, wanted[:, None])
            normaliser = logits.exp_().sum(-1, keepdim=True)
            loss = normaliser.log() - right
            share = None if counts is None else counts[start : start + rows, None].to(total.dtype)
            total += (loss if share is None else share * loss).sum()
            if not (needs_hidden or needs_weight):
                continue
            slope = logits.div_(normaliser)
            slope[torch.arange(len(part), device=part.device), wanted] -= 1
            if share is not None:
                slope *= share
            if grad_hidden is not None:
                grad_hidden[start : start + rows] = slope.to(weight.dtype) @ weight
            if grad_weight is not None:
                grad_weight += slope.T @ part.to(slope.dtype)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grads[0]
        return (
            None if grad_hidden is None else grad_hidden * scale.to(grad_hidden.dtype),
            None if grad_weight is None else (grad_weight * scale).to(ctx.weight_dtype),
            None,
            None,
            None,
        )


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    elements: int = CHUNK_ELEMENTS,
    counts: Tensor | None = None,
) -> Tensor:
    """Sum of next-token cross-entropy in nats over N tokens, from hidden [N, D] and the head's weight [V, D].

    counts [N]: what each token's loss is multiplied by. At most `elements` logits exist at a time.
    Second derivatives are not available.
    """
    rows = max(1, elements // weight.shape[0])
    return _LinearCrossEntropy.apply(hidden, weight, targets, rows, counts)


@dataclass(frozen=True)
class CrossEntropy:
    """Next-token cross-entropy of the student, in nats a token: a mean in which each target has its weight."""

    head: torch.nn.Linear
    weight: float = 1.0
    name: str = "ce"
    needs: Needs = Needs()
    student: Pass = "free"

    def totals(self, view: View) -> Tensor:
        source, target = next_token_places(view.mask, view.starts)
        if view.weights is None:
            return torch.tensor([float(len(source))], device=view.input_ids.device)
        return view.weights.flatten()[target].sum()[None]

    def sums(self, view: View) -> Tensor:
        source, target = next_token_places(view.mask, view.starts)
        assert view.hidden is not None, "the student has not run"
        counts = None if view.weights is None else view.weights.flatten()[target]
        hidden, wanted = view.hidden.flatten(0, 1)[source], view.input_ids.flatten()[target]
        return linear_cross_entropy(hidden, self.head.weight, wanted, counts=counts)[None]


@dataclass(frozen=True)
class Transfer:
    """Squared error of each changed layer's attention output over the squared norm of the teacher's."""

    layers: tuple[int, ...]
    weight: float = 1.0
    name: str = "mse"
    inputs: tuple[int, ...] = ()  # layers that are fed the teacher's hidden states; none: the student runs freely

    @property
    def student(self) -> Pass:
        return "fed" if self.inputs else "free"

    @property
    def needs(self) -> Needs:
        return Needs(outputs=self.layers, inputs=self.inputs)

    def totals(self, view: View) -> Tensor:
        """[A] squared norms of the teacher's outputs over counted tokens."""
        return torch.stack([_energy(view.teacher[layer], view.mask) for layer in self.layers])

    def sums(self, view: View) -> Tensor:
        """[A] squared distances between student and teacher over counted tokens."""
        return torch.stack([_energy(view.outputs[i] - view.teacher[i], view.mask) for i in self.layers])


def _energy(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of squares over counted tokens. Others are replaced first: even a NaN there has no effect, nor a gradient."""
    counted = values.masked_fill(~mask.bool()[..., None], 0.0)
    return counted.to(wide(values.dtype)).square().sum()


def ratio(sums: Tensor, totals: Tensor) -> Tensor:
    """Mean of sums / totals; an empty total counts as a loss of zero."""
    return (sums / totals.clamp_min(torch.finfo(totals.dtype).tiny)).mean()
