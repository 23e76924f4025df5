"""One optimizer step's losses and gradients, over any number of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..convert.adapters import lora_disabled
from ..hf.fed import fed_outputs
from ..hf.model import Captures
from ..plan import Plan
from .losses import Needs, Pass, Term, View, ratio
from .parallel import ALONE, World
from .stages import Stage, cut_back_propagation, needs_of

PASSES: tuple[Pass, ...] = ("free", "fed")
Check = Callable[[dict[str, Tensor], View], None]


def make_view(batch: Any, device: torch.device, on_document: str) -> View:
    """A batch as tensors on the model's device. Under "carry" documents run on into each other."""
    starts = torch.as_tensor(batch.document_starts, device=device).bool() if on_document == "reset" else None
    mask = torch.as_tensor(batch.mask, device=device).bool()
    weights = None if batch.weights is None else torch.as_tensor(batch.weights, device=device)
    return View(torch.as_tensor(batch.input_ids, device=device).long(), mask, starts, weights=weights)


def backward(model: Any, views: Sequence[View], stage: Stage, check: Check, world: World = ALONE) -> dict[str, float]:
    """Add the gradients of all views and return the losses, each the mean over all counted tokens of all processes.

    Totals are known before the first gradient, so every view divides by the sum over all of them. With more than one
    view the teacher's outputs of all of them are held until then.
    """
    totals = {name: world.sum(total) for name, total in _totals(model, views, stage).items()}
    losses = dict.fromkeys(totals, 0.0)
    for view in views:
        plan = cut_back_propagation(view.plan or model.plan, stage.detach)
        for student, terms in _passes(stage.terms):
            _study(model, view, student, terms, plan, stage.checkpoint)
            parts = {term.name: ratio(term.sums(view), totals[term.name]) for term in terms}
            check(parts, view)
            loss = sum(term.weight * parts[term.name] for term in terms)
            _reaching(loss, view, stage.sharded).backward()
            for name, part in parts.items():
                losses[name] += float(part.detach())
        view.release()
    world.add_gradients(stage.parameters)
    summed = world.sum(torch.tensor(list(losses.values()), dtype=torch.float64))
    return dict(zip(losses, summed.tolist(), strict=True)) if world.size > 1 else losses


def _reaching(loss: Tensor, view: View, sharded: bool) -> Tensor:
    """The loss, tied to the last hidden state: the way back through a sharded layer must begin at its output."""
    return loss + 0.0 * view.hidden.sum() if sharded and view.hidden is not None else loss


@torch.no_grad()
def evaluate(model: Any, views: Sequence[View], stage: Stage) -> dict[str, float]:
    """The losses of the stage and those it only watches, over the views, and `ce_without_slots`: nothing is read."""
    watched = (*stage.terms, *stage.watched)
    figures = _means(model, views, stage, watched, model.plan)
    if model.plan.slots:
        terms = tuple(term for term in watched if not term.needs)
        silent = _means(model, views, stage, terms, model.plan.without_slots())
        figures |= {f"{name}_without_slots": value for name, value in silent.items()}
    return figures


def _means(model: Any, views: Sequence[View], stage: Stage, terms: Sequence[Term], plan: Plan) -> dict[str, float]:
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {term.name: [] for term in terms}
    needs = needs_of(terms)
    for view in views:
        if needs:
            _teach(model, view, needs)
        for student, group in _passes(terms):
            _study(model, view, student, group, plan, stage.checkpoint)
            for term in group:
                parts[term.name].append((term.sums(view), term.totals(view)))
        view.release()
    return {
        name: float(ratio(*(torch.stack(each).sum(0) for each in zip(*p, strict=True)))) for name, p in parts.items()
    }


def _passes(terms: Sequence[Term]) -> list[tuple[Pass, list[Term]]]:
    """The terms by the student's pass that they are measured in; what needs no pass goes with another one's terms."""
    used = {term.student for term in terms}
    kinds: list[Pass] = [kind for kind in PASSES if kind in used] or ["none"]
    groups: dict[Pass, list[Term]] = {kind: [] for kind in kinds}
    for term in terms:
        groups[kinds[0] if term.student == "none" else term.student].append(term)
    return list(groups.items())


def _totals(model: Any, views: Sequence[View], stage: Stage) -> dict[str, Tensor]:
    for view in views:
        if stage.needs:
            _teach(model, view, stage.needs)
    return {term.name: torch.stack([term.totals(view) for view in views]).sum(0) for term in stage.terms}


@torch.no_grad()
def _teach(model: Any, view: View, needs: Needs) -> None:
    captures = Captures()
    with lora_disabled(model):
        hidden = model.hidden(
            view.input_ids,
            attention_mask=view.mask,
            document_starts=view.starts,
            plan=model.plan.teacher(),
            captures=captures,
        )
    view.teacher = {layer: captures.outputs[layer] for layer in needs.outputs}
    view.inputs = {layer: captures.inputs[layer] for layer in needs.inputs}
    view.aim = hidden if needs.hidden else None


def _study(model: Any, view: View, student: Pass, terms: Sequence[Term], plan: Plan, checkpoint: bool) -> None:
    """Run the student as the terms need it."""
    view.hidden, view.outputs = None, {}
    if student == "fed":
        view.outputs = fed_outputs(model, view.inputs, view.mask, view.starts, plan, checkpoint)
    elif student == "free":
        captures = Captures() if any(term.needs.outputs for term in terms) else None
        view.hidden = model.hidden(
            view.input_ids,
            attention_mask=view.mask,
            document_starts=view.starts,
            plan=plan,
            captures=captures,
            checkpoint=checkpoint,
        )
        view.outputs = captures.outputs if captures else {}
