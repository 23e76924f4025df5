"""One model seen under another plan, without a second copy of its weights: the controls beside every figure."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from ..plan import Plan
from .adapters import has_lora, lora_disabled


class PlanView:
    """Behaves like `model` run under `plan`, with its LoRA switched off if `lora` is False."""

    def __init__(self, model: Any, plan: Plan, *, lora: bool = True) -> None:
        self.model, self.plan, self.lora = model, plan, lora

    def __call__(self, *args: Any, **options: Any) -> Any:
        with nullcontext() if self.lora else lora_disabled(self.model):
            return self.model(*args, plan=self.plan, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def state_dict(self) -> dict[str, Any]:
        """What takes part: results of another view of the same model must not be taken for this one's."""
        unused = [] if self.lora else [".lora_"]
        unused += [] if self.plan.slots else [".writers.", ".readers."]
        return {k: v for k, v in self.model.state_dict().items() if not any(part in k for part in unused)}


def teacher(model: Any) -> PlanView:
    """The untouched base: full attention, no slot, no LoRA."""
    return PlanView(model, model.plan.teacher(), lora=False)


def without_memory(model: Any) -> PlanView:
    """The same attention and LoRA with every slot left out."""
    return PlanView(model, model.plan.without_slots())


def controls(model: Any) -> dict[str, PlanView]:
    """The comparisons that cost no further weights: the teacher, and the model without its memory if it has one."""
    found = {"teacher": teacher(model)}
    if model.plan.slots:
        found["window + LoRA" if has_lora(model) else "window"] = without_memory(model)
    return found
