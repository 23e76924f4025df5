"""Turn a pretrained causal language model into a hybrid that follows a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..core import UserError
from ..hf.model import AnchorForCausalLM
from ..plan import Plan

if TYPE_CHECKING:
    from .bases import Base


def convert(base: Base | nn.Module, plan: Plan | dict[str, Any]) -> AnchorForCausalLM:
    """Wrap each layer's attention in place and add the plan's slots, freshly initialised.

    `base` is what `load_base` returns or a transformers causal language model; `plan` a Plan or its stored form.
    A named base can later be saved as a small adapter; a bare model is saved whole.
    Raises UserError when the plan was made for another depth.
    """
    model = getattr(base, "model", None) if hasattr(base, "fingerprint") else base
    if isinstance(model, AnchorForCausalLM):
        raise UserError("the model is an anchorlm model already; convert its base instead")
    depth = model.config.num_hidden_layers
    plan = plan if isinstance(plan, Plan) else Plan.from_dict(plan, depth)
    if len(plan.layers) != depth:
        raise UserError(f"the plan is for {len(plan.layers)} layers; the model has {depth}")
    hybrid = AnchorForCausalLM.from_backbone(model, plan)
    if hasattr(base, "fingerprint"):
        hybrid.config.base, hybrid.config.base_fingerprint = base.name, base.fingerprint
    assert_finite(hybrid)
    count_writes(hybrid)
    return hybrid


def count_writes(model: Any) -> None:
    """Take the weights as they are now for the base's own: what `changed_weights` compares with."""
    model.untouched = {
        name.replace(".base_layer.", "."): _writes(parameter) for name, parameter in model.named_parameters()
    }


def changed_weights(model: Any) -> list[str]:
    """Names of backbone weights written to since `convert`; an adapter folder, which names the base, would lose them.

    torch counts writes in place, which is how optimizers work; a move to another device or dtype is none.
    """
    before, own = getattr(model, "untouched", {}), set(model.memory_parameters())
    now = {name.replace(".base_layer.", "."): _writes(parameter) for name, parameter in model.named_parameters()}
    return [name for name, writes in now.items() if name not in own and writes != before.get(name, writes)]


def _writes(parameter: torch.Tensor) -> int:
    return 0 if parameter.is_inference() else parameter._version


def assert_finite(model: nn.Module) -> None:
    """Every parameter and buffer holds real numbers on a real device. UserError naming the first that does not."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise UserError(f"{name} has no values; the base's weights were not loaded completely")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(f"{name} holds values that are not finite; the base's weights are damaged")
