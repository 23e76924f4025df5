"""The stages of a recipe: what each trains and which losses it minimises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

from ..convert.adapters import add_lora, has_lora, lora_parameters
from ..core import UserError
from ..plan import Plan, Reach
from ..settings import Recipe, Stage1Settings, StageSettings
from .distill import Distillation
from .groups import Group, freeze_all_but, make_groups, nothing_to_train
from .keep import Keep, check_gates, gated_slots
from .losses import CrossEntropy, Needs, Term, Transfer
from .maps import AttentionMaps, mapped_readers
from .rows import check_weights


@dataclass(frozen=True)
class Stage:
    """One stage, ready to run: the model's gradients are already restricted to `groups`."""

    name: str
    settings: StageSettings
    groups: list[Group]
    terms: tuple[Term, ...]
    checkpoint: bool
    detach: int = 0  # chunks of a slot that gradients flow through at most; 0: as the plan says
    sharded: bool = False
    watched: tuple[Term, ...] = ()  # what evaluation states beside the terms, of no weight in training

    @property
    def needs(self) -> Needs:
        """What the terms together look at of the teacher."""
        return needs_of(self.terms)

    @property
    def parameters(self) -> dict[str, Any]:
        return {name: p for group in self.groups for name, p in group.parameters.items()}


def needs_of(terms: Iterable[Term]) -> Needs:
    """What these terms together look at of the teacher."""
    return reduce(or_, (term.needs for term in terms), Needs())


def active_stages(recipe: Recipe) -> dict[str, StageSettings]:
    """The stages with at least one step, in order. UserError when there is none, or a stage minimises nothing."""
    stages: dict[str, StageSettings] = {"stage1": recipe.stage1, "stage2": recipe.stage2}
    active = {name: stage for name, stage in stages.items() if stage.steps}
    if not active:
        raise UserError("recipe has no step to train: stage1.steps and stage2.steps are both 0")
    for name, stage in active.items():
        weights = _weights(stage)
        if not any(getattr(stage, key) for key in weights):
            raise UserError(f"recipe {', '.join(f'{name}.{key}' for key in weights)} are all 0: nothing to minimise")
    return active


def short_stages(recipe: Recipe) -> list[str]:
    """A line for each stage that ends before its learning rate has risen to the peak."""
    found = {name: stage for name, stage in active_stages(recipe).items() if stage.steps < stage.warmup}
    return [
        f"{name}.steps is {stage.steps}, below {name}.warmup, {stage.warmup}: the learning rate ends at "
        f"{rate_factor(stage, stage.steps - 1):.0%} of its peak; try --set {name}.warmup={stage.steps // 4}"
        for name, stage in found.items()
    ]


def _weights(stage: StageSettings) -> list[str]:
    return [key for key in type(stage).model_fields if key.startswith("w_")]


def check_recipe(recipe: Recipe, plan: Plan) -> None:
    """Raise UserError for what no training under this plan could do; no model is needed to tell."""
    stages = active_stages(recipe)
    check_weights(stages, plan)
    check_gates(plan, recipe.data.length, stages)
    for name, stage in stages.items():
        _check_aim(stage, plan, name)
    if "stage1" in stages and not plan.slots:
        raise nothing_to_train("stage1")


def changed_layers(plan: Plan) -> tuple[int, ...]:
    """Layers that do not compute what the teacher's do: a shorter reach, or a slot to read."""
    return tuple(i for i, reach in enumerate(plan.layers) if reach != Reach() or plan.reads(i))


def cut_back_propagation(plan: Plan, chunks: int) -> Plan:
    """The plan with gradients through at most this many chunks of each slot; 0 leaves what the plan says."""
    if not chunks:
        return plan
    return replace(plan, slots={name: replace(slot, detach=chunks) for name, slot in plan.slots.items()})


def enter_stage(model: Any, name: str, recipe: Recipe) -> Stage:
    """Prepare `model` for a stage: LoRA where the stage has it, everything else frozen."""
    settings: StageSettings = getattr(recipe, name)
    if name == "stage2" and not has_lora(model):
        lora = recipe.stage2.lora
        add_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets)
    adapters = lora_parameters(model) if name == "stage2" else {}
    groups = make_groups(trained_memory(model, settings), adapters, settings)
    freeze_all_but(model, groups, name)
    terms = _terms(settings, model, name)
    watched = () if recipe.shard else _watched(settings, model, terms)
    return Stage(name, settings, groups, terms, recipe.checkpoint, recipe.detach, recipe.shard, watched)


def term_names(model: Any, recipe: Recipe) -> dict[str, list[str]]:
    """The names of the losses of every active stage."""
    return {name: [term.name for term in _terms(s, model, name)] for name, s in active_stages(recipe).items()}


def trained_memory(model: Any, settings: StageSettings) -> dict[str, Any]:
    """The memory's parameters, or none where the stage leaves them alone."""
    return dict(model.memory_parameters()) if getattr(settings, "train_memory", True) else {}


def _keep(settings: StageSettings, model: Any) -> Term | None:
    gates = gated_slots(model.plan)
    return Keep(model, gates, settings.w_keep) if gates else None


def _transfer(settings: StageSettings, model: Any) -> Term | None:
    if not isinstance(settings, Stage1Settings):
        return None
    layers, writers = changed_layers(model.plan), {slot.write for slot in model.plan.slots.values()}
    fed = tuple(sorted({*layers, *writers})) if settings.mse_inputs == "teacher" else ()
    return Transfer(layers, settings.w_mse, inputs=fed)


def _maps(settings: StageSettings, model: Any) -> Term | None:
    weight = getattr(settings, "w_maps", 0.0)
    readers = mapped_readers(model.plan)
    if weight and not readers:
        raise UserError(f"stage1.w_maps is {weight:g} but no slot of the plan has mix 'shared'; leave it at 0")
    return AttentionMaps(model, readers, weight) if readers else None


def _cross_entropy(settings: StageSettings, model: Any) -> Term | None:
    return CrossEntropy(model.get_output_embeddings(), settings.w_ce)


def _distillation(settings: StageSettings, model: Any) -> Term | None:
    return Distillation(model.get_output_embeddings(), settings.w_kl, settings.temperature)


# A new loss is one line here: from the stage's settings and the model to a term, or None where it has no meaning.
BUILDERS: tuple[Callable[[Any, Any], Term | None], ...] = (_keep, _transfer, _maps, _cross_entropy, _distillation)


def _terms(settings: StageSettings, model: Any, name: str) -> tuple[Term, ...]:
    _check_aim(settings, model.plan, name)
    terms = [build(settings, model) for build in BUILDERS]
    return tuple(term for term in terms if term is not None and term.weight)


def _check_aim(settings: StageSettings, plan: Plan, name: str) -> None:
    """Of a stage with some weight above 0: one that this plan has a use for."""
    gates = gated_slots(plan)
    if not any(getattr(settings, key) for key in _weights(settings) if gates or key != "w_keep"):
        raise UserError(
            f"recipe {name} has w_keep alone, which trains slots of rule 'kept' with choose 'gate' or 'decay', and the "
            f"plan has none: nothing to minimise; set {name}.w_ce above 0"
        )


def _watched(settings: StageSettings, model: Any, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Cross-entropy and, in stage 1, transfer where they are not minimised: one can fall while the other rises."""
    transfer = _transfer(settings, model) if changed_layers(model.plan) else None
    known = {term.name for term in terms}
    found = (transfer, _cross_entropy(settings, model))
    return tuple(term for term in found if term is not None and term.name not in known)


def rate_factor(stage: StageSettings, step: int) -> float:
    """What the peak learning rate is multiplied by at a step of the stage, counted from 0."""
    if step < stage.warmup:
        return (step + 1) / stage.warmup
    if stage.schedule == "constant":
        return 1.0
    falling = 0.5 * (1 + math.cos(math.pi * (step - stage.warmup) / max(1, stage.steps - stage.warmup)))
    return stage.floor + (1 - stage.floor) * falling
