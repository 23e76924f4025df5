"""What differs between backbone families; one entry each, no copied model file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..core import UserError, suggest
from ..plan import Plan, Reach


@dataclass(frozen=True)
class Family:
    """layer_windows: the config lists per layer whether the teacher itself slides; else one window holds for all."""

    layer_windows: bool = False


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(layer_windows=True),
    "qwen3": Family(layer_windows=True),
}

# These rope types rescale with the length of the whole input, so a text read in pieces would differ.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check(config: Any) -> Family:
    """The family of a backbone config. Raises UserError for a family or a rope type that cannot be wrapped exactly."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        raise UserError(f"model family {kind!r} is not supported; {suggest(str(kind), FAMILIES)}")
    rope = getattr(config, "rope_parameters", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type in LENGTH_DEPENDENT_ROPE:
        raise UserError(f"rope type {rope_type!r} changes with the length of the text; it cannot be read in pieces")
    return FAMILIES[kind]


def teacher_window(config: Any, layer: int) -> int | None:
    """The window of the teacher's own attention in a layer, counting the current token; None when it sees all."""
    window = getattr(config, "sliding_window", None)
    if window is None or config.model_type == "llama":
        return None
    if FAMILIES[config.model_type].layer_windows:
        return window if config.layer_types[layer] == "sliding_attention" else None
    return window


def effective(plan: Plan, config: Any) -> Plan:
    """The plan with every reach cut to what the teacher's own layer sees."""
    return Plan(tuple(cut(reach, config, i) for i, reach in enumerate(plan.layers)), plan.slots)


def cut(reach: Reach, config: Any, layer: int) -> Reach:
    """The reach, no head of it wider than the teacher's own."""
    limit = teacher_window(config, layer)
    return reach if limit is None else reach.map(lambda part: _cut(part, limit))


def _cut(reach: Reach, limit: int) -> Reach:
    if reach.kind in ("none", "segment"):
        return reach
    if reach.kind == "full":
        return replace(reach, kind="window", window=limit)
    most = limit if reach.kind == "window" else max(1, limit // 2)  # a terrace sees up to two of its blocks
    return replace(reach, window=min(most, reach.window or most))
