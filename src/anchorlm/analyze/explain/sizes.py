"""The same weights with another chunk, or with more or fewer kept tokens: what a plan permits without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import Plan, Reach, Slot


def resized(plan: Plan, window: int | None = None, chunk: int | None = None, kept: int | None = None) -> Plan:
    """The plan with every window, every slot's chunk and the kept tokens replaced where given.

    kept: tokens a KV head of the slot that keeps most; the others keep theirs in proportion.
    """

    def wider(reach: Reach) -> Reach:
        return replace(reach, window=window) if window and reach.kind == "window" else reach

    most = most_kept(plan)
    slots = {name: _resized(slot, chunk, kept, most) for name, slot in plan.slots.items()}
    return Plan(tuple(reach.map(wider) for reach in plan.layers), slots)


def most_kept(plan: Plan) -> int | None:
    """Tokens a KV head of the slot that keeps most; None where none keeps any."""
    return max((s.rule_options.tokens for s in plan.slots.values() if hasattr(s.rule_options, "tokens")), default=None)


def _resized(slot: Slot, chunk: int | None, kept: int | None, most: int | None) -> Slot:
    slot = replace(slot, chunk=chunk) if chunk else slot
    if not kept or not most or not hasattr(slot.rule_options, "tokens"):
        return slot
    tokens = max(1, slot.rule_options.tokens * kept // most)
    return replace(slot, options=replace(slot.rule_options, tokens=tokens))


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
