"""The stages of a recipe: what each trains and which losses it minimises."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..convert.adapters import add_lora, has_lora, lora_parameters
from ..core import UserError
from ..memory.slot import SlotWriter
from ..plan import Plan, Reach
from ..settings import Recipe, StageSettings
from .groups import Group, freeze_all_but, make_groups
from .keep import Keep, gated_slots
from .losses import CrossEntropy, Term, Transfer


@dataclass(frozen=True)
class Stage:
    """One stage, ready to run: the model's gradients are already restricted to `groups`."""

    name: str
    settings: StageSettings
    groups: list[Group]
    terms: tuple[Term, ...]
    layers: tuple[int, ...]  # whose attention outputs the terms look at; empty when none does
    inputs: tuple[int, ...]  # whose inputs in the teacher they look at
    checkpoint: bool

    @property
    def parameters(self) -> dict[str, Any]:
        return {name: p for group in self.groups for name, p in group.parameters.items()}


def active_stages(recipe: Recipe) -> dict[str, StageSettings]:
    """The stages with at least one step, in order. UserError when there is none, or a stage minimises nothing."""
    stages: dict[str, StageSettings] = {"stage1": recipe.stage1, "stage2": recipe.stage2}
    active = {name: stage for name, stage in stages.items() if stage.steps}
    if not active:
        raise UserError("recipe has no step to train: stage1.steps and stage2.steps are both 0")
    first = recipe.stage1
    if first.steps and not (first.w_mse or first.w_ce or first.w_keep):
        raise UserError("recipe stage1.w_mse, stage1.w_ce and stage1.w_keep are all 0: nothing to minimise")
    return active


def changed_layers(plan: Plan) -> tuple[int, ...]:
    """Layers that do not compute what the teacher's do: a shorter reach, or a slot to read."""
    return tuple(i for i, reach in enumerate(plan.layers) if reach != Reach() or plan.reads(i))


def cut_back_propagation(model: Any, chunks: int) -> None:
    """Let gradients flow through at most this many chunks of each slot; 0 leaves what the plan says."""
    for module in model.modules():
        if chunks and isinstance(module, SlotWriter):
            module.slot = replace(module.slot, detach=chunks)


def enter_stage(model: Any, name: str, recipe: Recipe) -> Stage:
    """Prepare `model` for a stage: LoRA where the stage has it, everything else frozen."""
    settings: StageSettings = getattr(recipe, name)
    if name == "stage2" and not has_lora(model):
        lora = recipe.stage2.lora
        add_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets)
    adapters = lora_parameters(model) if name == "stage2" else {}
    groups = make_groups(dict(model.memory_parameters()), adapters, settings)
    freeze_all_but(model, groups, name)
    cut_back_propagation(model, recipe.detach)
    terms = _terms(model, name, recipe)
    layers = changed_layers(model.plan) if any(isinstance(term, Transfer) for term in terms) else ()
    inputs = tuple(layer for term in terms if isinstance(term, Keep) for layer in term.layers)
    return Stage(name, settings, groups, terms, layers, inputs, recipe.checkpoint)


def _terms(model: Any, name: str, recipe: Recipe) -> tuple[Term, ...]:
    settings = recipe.stage1 if name == "stage1" else recipe.stage2
    head, gates = model.get_output_embeddings(), gated_slots(model)
    terms: list[Term] = [Keep(model, gates, settings.w_keep)] if gates else []
    if name == "stage1":
        terms += [Transfer(changed_layers(model.plan), recipe.stage1.w_mse), CrossEntropy(head, recipe.stage1.w_ce)]
    else:
        terms += [CrossEntropy(head)]
    chosen = tuple(term for term in terms if term.weight)
    if not chosen:
        raise UserError(f"recipe {name} has w_keep alone, and no slot of the plan has a gate: nothing to minimise")
    return chosen


def rate_factor(stage: StageSettings, step: int) -> float:
    """What the peak learning rate is multiplied by at a step of the stage, counted from 0."""
    if step < stage.warmup:
        return (step + 1) / stage.warmup
    if stage.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - stage.warmup) / max(1, stage.steps - stage.warmup)))
