"""One optimizer step's losses and gradients, over any number of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..convert.adapters import lora_disabled
from ..hf.model import Captures
from .losses import View, ratio
from .stages import Stage

Check = Callable[[dict[str, Tensor], View], None]


def make_view(batch: Any, device: torch.device, on_document: str) -> View:
    """A batch as tensors on the model's device. Under "carry" documents run on into each other."""
    starts = torch.as_tensor(batch.document_starts, device=device).bool() if on_document == "reset" else None
    mask = torch.as_tensor(batch.mask, device=device).bool()
    return View(torch.as_tensor(batch.input_ids, device=device).long(), mask, starts)


def backward(model: Any, views: Sequence[View], stage: Stage, check: Check) -> dict[str, float]:
    """Add the gradients of all views and return the losses, each the mean over all counted tokens.

    Totals are known before the first gradient, so every view divides by the sum over all of them. With more than one
    view the teacher's outputs of all of them are held until then.
    """
    totals = _totals(model, views, stage)
    losses = dict.fromkeys(totals, 0.0)
    for view in views:
        parts = _student(model, view, stage, totals)
        check(parts, view)
        sum(term.weight * parts[term.name] for term in stage.terms).backward()
        for name, part in parts.items():
            losses[name] += float(part.detach())
        view.release()
    return losses


@torch.no_grad()
def evaluate(model: Any, views: Sequence[View], stage: Stage) -> dict[str, float]:
    """The stage's losses over the views, without gradients."""
    sums: dict[str, Tensor] = {}
    totals: dict[str, Tensor] = {}
    for view in views:
        for name, value in _totals(model, [view], stage).items():
            totals[name] = totals[name] + value if name in totals else value
        _study(model, view, stage)
        for term in stage.terms:
            value = term.sums(view)
            sums[term.name] = sums[term.name] + value if term.name in sums else value
        view.release()
    return {name: float(ratio(sums[name], totals[name])) for name in sums}


def _totals(model: Any, views: Sequence[View], stage: Stage) -> dict[str, Tensor]:
    for view in views:
        if stage.layers:
            _teach(model, view, stage)
    return {term.name: torch.stack([term.totals(view) for view in views]).sum(0) for term in stage.terms}


@torch.no_grad()
def _teach(model: Any, view: View, stage: Stage) -> None:
    captures = Captures()
    with lora_disabled(model):
        model.hidden(
            view.input_ids,
            attention_mask=view.mask,
            document_starts=view.starts,
            plan=model.plan.teacher(),
            captures=captures,
        )
    view.teacher = {layer: captures.outputs[layer] for layer in stage.layers}


def _student(model: Any, view: View, stage: Stage, totals: dict[str, Tensor]) -> dict[str, Tensor]:
    _study(model, view, stage)
    return {term.name: ratio(term.sums(view), totals[term.name]) for term in stage.terms}


def _study(model: Any, view: View, stage: Stage) -> None:
    captures = Captures() if stage.layers else None
    view.hidden = model.hidden(
        view.input_ids,
        attention_mask=view.mask,
        document_starts=view.starts,
        captures=captures,
        checkpoint=stage.checkpoint,
    )
    view.outputs = captures.outputs if captures else {}
