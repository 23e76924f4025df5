"""The same weights with another chunk, or with more or fewer kept tokens: what a plan permits without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import Plan, Reach, Slot


def resized(plan: Plan, window: int | None = None, chunk: int | None = None, kept: int | None = None) -> Plan:
    """The plan with every window, every slot's chunk and every slot's kept tokens replaced where given."""

    def wider(reach: Reach) -> Reach:
        return replace(reach, window=window) if window and reach.kind == "window" else reach

    slots = {name: resized_slot(slot, chunk, kept) for name, slot in plan.slots.items()}
    return Plan(tuple(reach.map(wider) for reach in plan.layers), slots)


def resized_slot(slot: Slot, chunk: int | None, kept: int | None) -> Slot:
    slot = replace(slot, chunk=chunk) if chunk else slot
    if kept is None or not hasattr(slot.rule_options, "tokens"):
        return slot
    return replace(slot, options=replace(slot.rule_options, tokens=kept))


@contextmanager
def slots_as(model: AnchorForCausalLM, plan: Plan) -> Iterator[None]:
    """Inside the block the model's slots write and read as the plan says; no weight changes, so sizes must not."""
    with ExitStack() as undo:
        for layer in model.backbone.model.layers:
            for part in (layer.self_attn.writers, layer.self_attn.readers):
                for name, module in part.items():
                    if name in plan.slots:
                        for owner, field, value in _fields(module, plan.slots[name]):
                            undo.callback(_setter(owner, field, getattr(owner, field)))
                            setattr(owner, field, value)
        yield


def _fields(module: Any, slot: Slot) -> Iterator[tuple[Any, str, Any]]:
    """(module, attribute, value) of every module of a writer or reader that knows its slot or its rule's options."""
    for owner in module.modules():
        if hasattr(owner, "slot"):
            yield owner, "slot", slot
        if hasattr(owner, "options"):
            yield owner, "options", slot.rule_options


def _setter(owner: Any, field: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, field, value)
