"""Checks of what a caller passes in: everything is used, or refused in one line that names it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..plan import Plan, Reach
from ..reach import Heads
from ..state import AttentionState, ModelState, of_heads
from .cache import StateCache

HIDDEN_OPTIONS = ("document_starts", "plan", "captures", "checkpoint", "block")
IGNORED_OPTIONS = ("return_dict", "output_attentions", "output_hidden_states", "cache_position", "is_first_iteration")


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `hidden`. Raises TypeError for anything that would be ignored silently."""
    for name, value in options.items():
        if name not in HIDDEN_OPTIONS and (name not in IGNORED_OPTIONS or (name.startswith("output_") and value)):
            raise TypeError(f"forward() has no argument {name!r}")
        if name == "return_dict" and value is not None and not value:
            raise TypeError("return_dict=False is not supported; read the fields of the output, such as .logits")
    return {name: value for name, value in options.items() if name in HIDDEN_OPTIONS}


def check_input(input_ids: Any, inputs_embeds: Any, block: Any) -> None:
    """Exactly one input, of the right rank: with both, one would be ignored."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give input_ids or inputs_embeds, exactly one of them")
    for name, value, axes in (("input_ids", input_ids, "[B, T]"), ("inputs_embeds", inputs_embeds, "[B, T, D]")):
        if value is not None and value.dim() != axes.count(",") + 1:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be {axes}")
    if not isinstance(block, int) or block < 1:
        raise ValueError(f"block is {block!r}; it must be a whole number of at least 1")


def check_cache(cache: Any) -> None:
    if cache is not None and not isinstance(cache, StateCache):
        raise ValueError(f"cache is a {type(cache).__name__}; this model needs the one of model.new_cache()")


def check_state(state: ModelState, plan: Plan) -> None:
    """A state that this plan can go on from: of as many layers, every slot, which cannot begin midway, and no less
    attention than it needs. The plan's reaches are those the model really has (`families.effective`).
    """
    if len(state.attention) != len(plan.layers):
        raise ValueError(f"the cache holds {len(state.attention)} layers; the model has {len(plan.layers)}")
    read = int(state.position.max())
    if read == 0:
        return
    missing = sorted(set(plan.slots) - set(state.slots))
    for layer, (reach, held) in enumerate(zip(plan.layers, state.attention, strict=True)):
        _check_reach(layer, reach, held, read)
    if missing:
        raise ValueError(f"the cache was filled under a plan without the slot {missing[0]!r}; start with a new cache")


def _check_reach(layer: int, reach: Reach, held: dict[Heads, AttentionState], read: int) -> None:
    """Keys and sinks that the reach would see after `read` tokens cannot be made up for."""
    for part, heads in reach.groups(sum(map(len, held)) or 1).items():
        state = of_heads(held, heads)
        keys = 0 if state is None else state.keys.shape[2]
        sinks = 0 if state is None or state.sink_keys is None else state.sink_keys.shape[2]
        if state is not None and read and keys and part.kind != "none" and state.positions != part.positions:
            raise ValueError(
                f"the cache was filled under a plan with positions {state.positions!r} in layer {layer}; this plan has "
                f"{part.positions!r}; start with a new cache"
            )
        wanted = read if part.limit is None else min(read, max(0, part.limit - 1))
        for name, has, needs in (("tokens", keys, wanted), ("sinks", sinks, min(read, part.sinks))):
            if has < needs:
                raise ValueError(
                    f"the cache was filled under a narrower plan: layer {layer} holds {has} {name}, {part.text()} "
                    f"needs {needs}; start with a new cache"
                )


def check_plan(plan: Plan, own: Plan) -> Plan:
    """Another plan for the same weights: other reaches and fewer slots, never a slot that has no weights."""
    if len(plan.layers) != len(own.layers):
        raise ValueError(f"the plan has {len(plan.layers)} layers; the model has {len(own.layers)}")
    for index, (reach, mine) in enumerate(zip(plan.layers, own.layers, strict=True)):
        if reach.meta not in (0, mine.meta):
            raise ValueError(f"the plan has {reach.meta} meta logits in layer {index}; the model has {mine.meta}")
    for name, slot in plan.slots.items():
        known = own.slots.get(name)
        if known is None or known.write != slot.write or not set(slot.read) <= set(known.read):
            raise ValueError(f"the plan has a slot {name!r} that the model has no weights for")
    return plan


def last_columns(mask: Tensor | None, x: Tensor, name: str) -> Tensor | None:
    """The columns of a mask that belong to the new tokens; masks of cached generation cover the past too."""
    if mask is None:
        return None
    rows, width = x.shape[:2]
    if mask.dim() != 2 or mask.shape[0] != rows or mask.shape[1] < width:
        raise ValueError(f"{name} has shape {tuple(mask.shape)}; it must be [{rows}, at least {width}]")
    return mask[:, -width:]


def check_starts(starts: Tensor | None, x: Tensor) -> None:
    if starts is not None and starts.shape != x.shape[:2]:
        raise ValueError(f"document_starts has shape {tuple(starts.shape)}; it must be {tuple(x.shape[:2])}")


def check_positions(
    position_ids: Tensor | None, mask: Tensor | None, starts: Tensor | None, state: ModelState, x: Tensor
) -> None:
    """Positions follow from the mask and the state; given ones must agree, for they cannot be used otherwise."""
    if position_ids is None or starts is not None:
        return
    keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask.bool()
    expected = state.position[:, None] + keep.cumsum(1) - 1
    if not torch.equal(position_ids.expand_as(expected)[keep], expected[keep]):
        raise ValueError(
            "position_ids disagree with the attention mask and the cache; leave them out. "
            "In generate: pad on the left, give every row a token, and begin the prompt with what the cache has read"
        )
