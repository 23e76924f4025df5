"""Stop at the first value that is not finite, and say where it appeared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .errors import TrainingError
from .losses import View


def check_tokens(input_ids: Tensor, vocabulary: int, step: int) -> None:
    """Raise TrainingError when a batch holds an id that the model has no embedding for."""
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise TrainingError(f"step {step}: the batch holds token id {wrong}; the model has ids 0 to {vocabulary - 1}")


def check_losses(parts: Mapping[str, Tensor], model: nn.Module, view: View, step: int, good: str) -> None:
    """Raise TrainingError when a loss is NaN or infinite, naming the first module whose output is."""
    for name, value in parts.items():
        number = float(value.detach())
        if not math.isfinite(number):
            raise TrainingError(f"step {step}: the loss {name} is {number}; {first_bad(model, view)}; {good}")


def check_gradients(parameters: Mapping[str, nn.Parameter], norm: float, step: int, good: str) -> None:
    """Raise TrainingError when the gradient's norm is NaN or infinite, naming the first parameter at fault."""
    if math.isfinite(norm):
        return
    bad = [n for n, p in parameters.items() if p.grad is not None and not torch.isfinite(p.grad).all()]
    where = f"first in parameter {bad[0]}" if bad else "although each parameter's gradient is finite: it is too large"
    raise TrainingError(f"step {step}: the gradient's norm is {norm}, {where}; {good}")


def first_bad(model: nn.Module, view: View) -> str:
    """Run the batch once more without gradients and name the first place that is not finite."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name} is not finite"
    seen: list[str] = []
    with torch.no_grad(), _watched(model, seen):
        model.hidden(view.input_ids, attention_mask=view.mask, document_starts=view.starts, plan=view.plan)
    return f"first in the output of {seen[0]}" if seen else "every module's output is finite: the loss itself overflows"


@contextmanager
def _watched(model: nn.Module, seen: list[str]) -> Iterator[None]:
    def note(name: str):
        def hook(module: nn.Module, inputs: tuple, output: object) -> None:
            tensors = output if isinstance(output, (tuple, list)) else (output,)
            if any(isinstance(t, Tensor) and t.is_floating_point() and not torch.isfinite(t).all() for t in tensors):
                seen.append(name)

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
