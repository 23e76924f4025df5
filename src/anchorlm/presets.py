"""Named plans: small functions from a model's shape to a plan, for any depth."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from .core import UserError, no_file, read_yaml, suggest
from .plan import ModelShape, Plan, Reach, Slot
from .rules import RULES, RuleOptions, one_of, whole

WINDOW = 512
SINKS = 4
Groups = list[list[int]]


def boundary_groups(layers: int) -> list[list[int]]:
    """The paper's anchor groups, {0, 1} and {28..31} of 32 layers, as the first two and last four of any depth."""
    head = [0, 1] if layers >= 6 else [0]
    tail = list(range(max(len(head), layers - 4 if layers >= 6 else layers - 1), layers))
    return [head, tail] if tail else [head]


def _window(shape: ModelShape, window: int, sinks: int) -> tuple[Reach, ...]:
    return (Reach("window", window, sinks),) * shape.layers


def swa(shape: ModelShape, window: int = WINDOW, sinks: int = SINKS) -> Plan:
    """Sliding-window attention with sinks in every layer and no memory."""
    return Plan(_window(shape, window, sinks))


def anchor_f(shape: ModelShape, window: int = WINDOW, sinks: int = SINKS, **slot: Any) -> Plan:
    """Anchor-F: a private state in every layer."""
    slots = {f"l{i}": _slot([i], window, slot) for i in range(shape.layers)}
    return Plan(_window(shape, window, sinks), slots)


def anchor_i(
    shape: ModelShape, window: int = WINDOW, sinks: int = SINKS, groups: Groups | None = None, **slot: Any
) -> Plan:
    """Anchor-I: one shared state for each boundary group, a private state in each interior layer."""
    plan = anchor(shape, window, sinks, groups, **slot)
    anchored = {layer for group in plan.slots.values() for layer in group.read}
    inner = {f"l{i}": _slot([i], window, slot) for i in range(shape.layers) if i not in anchored}
    return Plan(plan.layers, {**plan.slots, **inner})


def anchor(
    shape: ModelShape, window: int = WINDOW, sinks: int = SINKS, groups: Groups | None = None, **slot: Any
) -> Plan:
    """Anchor: one shared state for each boundary group, a window alone in every other layer.

    groups: other layers than the paper's, head and tail, or one of them; the first of each writes.
    """
    chosen = boundary_groups(shape.layers) if groups is None else _checked_groups(groups)
    slots = {name: _slot(group, window, slot) for name, group in zip(("head", "tail"), chosen, strict=False)}
    return Plan(_window(shape, window, sinks), slots)


def anchor_private(shape: ModelShape, window: int = WINDOW, sinks: int = SINKS, **slot: Any) -> Plan:
    """The boundary layers with a private state each: Anchor without sharing."""
    layers = [layer for group in boundary_groups(shape.layers) for layer in group]
    return Plan(_window(shape, window, sinks), {f"l{i}": _slot([i], window, slot) for i in layers})


def anchor_hybrid(shape: ModelShape, window: int = WINDOW, sinks: int = SINKS, **slot: Any) -> Plan:
    """3:1 interleaving: three windowed layers share one state, the fourth keeps full attention."""
    layers = tuple(Reach() if i % 4 == 3 else Reach("window", window, sinks) for i in range(shape.layers))
    groups = [list(range(s, min(s + 3, shape.layers))) for s in range(0, shape.layers, 4)]
    return Plan(layers, {f"g{n}": _slot(group, window, slot) for n, group in enumerate(groups)})


def lolcats(
    shape: ModelShape, window: int = 64, kind: str = "window", groups: Groups | None = None, rest: str = "own",
    **slot: Any,
) -> Plan:  # fmt: skip
    """LoLCATs (arXiv 2410.10254): what leaves a window goes into Hedgehog features, under one normaliser with it.

    kind: "window" slides; "terrace", the paper's default, sees its own block of tokens and the one before.
    groups, rest: as `_remembering` says.
    """
    reaches = [Reach(kind, window)] * shape.layers
    return _remembering(shape, reaches, {"rule": "hedgehog"} | slot, groups, rest)


def liger(
    shape: ModelShape, window: int = 64, full_every: int = 0, groups: Groups | None = None, rest: str = "own",
    **slot: Any,
) -> Plan:  # fmt: skip
    """Liger (arXiv 2503.01496): half a window, half gated linear attention whose gate is the key; no new parameter.

    full_every: every such layer keeps full attention and no memory; 8 is the paper's "-H", 0 none.
    groups, rest: as `_remembering` says.
    """
    reaches = _but_every(full_every, Reach("window", window), shape)
    return _remembering(shape, reaches, {"rule": "gla"} | slot, groups, rest)


def lizard(
    shape: ModelShape, window: int = 128, meta: int = 4, full_every: int = 0, groups: Groups | None = None,
    rest: str = "own", **slot: Any,
) -> Plan:  # fmt: skip
    """Lizard (arXiv 2507.09025): no positions, meta logits in the window's denominator, a gated normalised memory.

    full_every: every such layer stays the teacher's; 2 is the paper's hybrid, 0 none. Features are as wide as a head.
    groups, rest: as `_remembering` says.
    """
    reach = Reach("window", window, meta=meta, positions="none")
    options = {"gate": "scalar", "width": shape.head_dim}
    own = {"heads": "kv", "lag": "self", "rope": "none", "mix": "sum", "options": options}
    reaches = _but_every(full_every, reach, shape)
    return _remembering(shape, reaches, {"rule": "hedgehog"} | own | slot, groups, rest)


def titan_llama(
    shape: ModelShape, segment: int | None = None, converted: int | list[int] = 4, later: str = "full",
    window: int = WINDOW, sinks: int = SINKS, groups: Groups | None = None, rest: str = "own", **slot: Any,
) -> Plan:  # fmt: skip
    """Titan-Llama (arXiv 2610.19210): attention inside segments, and all before them in a neural memory a KV head.

    segment: tokens, as many as `window` if none is given. converted: how many of the first layers, or which. later:
    what the others see, "full" or a "window" of `window` tokens with `sinks`. groups, rest: as `_remembering` says.
    """
    one_of(later, ("full", "window"), "later")
    chosen, segment = _converted(converted, shape.layers), window if segment is None else segment
    others = Reach() if later == "full" else Reach("window", window, sinks)
    reaches = [Reach("segment", segment=segment) if i in chosen else others for i in range(shape.layers)]
    own = {"rule": "nmm", "lag": "segment", "chunk": segment}
    return _remembering(shape, reaches, own | slot, groups, rest, chosen)


def _converted(converted: Any, depth: int) -> list[int]:
    """The first `converted` layers, of fewer all; or the layers of a list."""
    if not isinstance(converted, list):
        whole(converted, 1, "converted")
        return list(range(min(converted, depth)))
    if not converted:
        raise UserError("converted is []; name a layer, or how many of the first")
    for layer in converted:
        if isinstance(layer, bool) or layer not in range(depth):
            raise UserError(f"converted names layer {layer!r}; the model has layers 0 to {depth - 1}")
    return sorted(set(converted))


def _but_every(full_every: int, reach: Reach, shape: ModelShape) -> list[Reach]:
    """The reach in every layer, but full attention in each `full_every`-th, the last of its group."""
    whole(full_every, 0, "full_every")
    return [Reach() if full_every and i % full_every == full_every - 1 else reach for i in range(shape.layers)]


def _remembering(
    shape: ModelShape, reaches: list[Reach], slot: Mapping[str, Any], groups: Groups | None, rest: str,
    layers: list[int] | None = None,
) -> Plan:  # fmt: skip
    """A slot of its own in every layer of `layers`, by default those of limited attention, as a plan file would say it.

    groups: these layers share one state each, written by the first and read by all through a map of their own, the
    identity at the start. rest: whether the other layers have their "own" slot or "none".
    """
    one_of(rest, ("own", "none"), "rest")
    able = layers or [i for i, reach in enumerate(reaches) if reach != Reach()]
    chosen = [] if groups is None else _checked_groups(groups, len(able), able)
    grouped = {layer for group in chosen for layer in group}
    entries = {
        f"g{n}": {"write": group[0], "read": group, "map": "cayley"} | dict(slot) for n, group in enumerate(chosen)
    }
    if rest == "own":
        entries |= {f"l{i}": {"write": i} | dict(slot) for i in able if i not in grouped}
    return Plan(tuple(reaches), Plan.from_dict({"slots": entries}, shape.layers).slots)


def full(shape: ModelShape) -> Plan:
    """The untouched model."""
    return Plan((Reach(),) * shape.layers)


def _checked_groups(groups: Any, most: int = 2, able: Collection[int] | None = None) -> Groups:
    """Lists of layers, each layer once. able: those that have a memory to share; None: any."""
    lists = isinstance(groups, list) and groups and all(isinstance(g, list) and g for g in groups)
    if not lists or len(groups) > most or not all(isinstance(layer, int) for group in groups for layer in group):
        count = "one or two lists" if most == 2 else "lists"
        raise UserError(f"groups is {groups!r}; give {count} of layers, such as [[0, 1], [6, 7]]")
    named = [layer for group in groups for layer in group]
    for layer in named if able is not None else ():
        if layer not in able:
            raise UserError(
                f"groups names layer {layer}, which has no memory to share; layers {', '.join(map(str, able))} have"
            )
        if named.count(layer) > 1:
            raise UserError(f"groups names layer {layer} twice; a layer shares one state")
    return groups


def _slot(group: list[int], window: int, values: Mapping[str, Any]) -> Slot:
    return Slot(write=group[0], read=tuple(group), **({"chunk": window} | dict(values)))


PRESETS: dict[str, Callable[..., Plan]] = {
    "full": full,
    "swa": swa,
    "anchor": anchor,
    "anchor-f": anchor_f,
    "anchor-i": anchor_i,
    "anchor-hybrid": anchor_hybrid,
    "anchor-private": anchor_private,
    "lolcats": lolcats,
    "liger": liger,
    "lizard": lizard,
    "titan-llama": titan_llama,
}


def build(name: str, shape: ModelShape, **values: Any) -> Plan:
    """The preset `name` for a shape, checked. Keyword values: those of the preset, and any field of a slot."""
    if name not in PRESETS:
        raise UserError(f"plan {name!r} is neither a file nor a preset; {suggest(name, PRESETS)}")
    base = PRESETS[name](shape, **{k: v for k, v in values.items() if k in own_keys(name)})
    unused = [key for key in values if key not in own_keys(name)]
    if unused and not base.slots:
        raise UserError(f"plan {name!r} takes no {unused[0]!r}; it has no slot")
    return _override_slots(base, {k: values[k] for k in unused}, shape).check(shape)


def own_keys(name: str) -> tuple[str, ...]:
    """What a preset takes beside fields of its slots."""
    parameters = inspect.signature(PRESETS[name]).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "shape")


def _override_slots(plan: Plan, values: Mapping[str, Any], shape: ModelShape) -> Plan:
    """Set fields of every slot at once through the stored form, so that the same strict checks apply."""
    stored = plan.to_dict()
    for slot in stored["slots"].values():
        for key, value in values.items():
            if key in ("write", "read"):
                raise UserError(f"{key!r} cannot be set for every slot of a preset; write a plan file")
            nested = isinstance(value, Mapping) and isinstance(slot.get(key), Mapping) and "rule" not in values
            slot[key] = {**slot[key], **value} if nested else value
        if "rule" in values:
            slot |= {"options": {}} | _own_fields(str(values["rule"]), slot) | values
    return Plan.from_dict(stored, shape.layers)


def _own_fields(rule: str, slot: Mapping[str, Any]) -> dict[str, Any]:
    """What the rule sets for its slots; its chunk is never longer than the preset's, which follows the window.

    A slot that several layers read keeps its map, unless its tokens enter their softmax.
    """
    options = RULES.get(rule, RuleOptions)
    own = dict(options.slot_defaults)
    if len(slot["read"]) > 1 and not options.joint:
        own.pop("map", None)
    return {key: min(value, slot[key]) if key == "chunk" else value for key, value in own.items()}


def load_plan(name: str | Path, shape: ModelShape, overrides: Mapping[str, Any] | None = None) -> Plan:
    """A plan from a preset name or a YAML file, checked against the shape.

    `overrides` are nested values (as `--set window=128` or `--set slots.head.chunk=64` gives them).
    """
    overrides = dict(overrides or {})
    if str(name) in PRESETS:
        slots = overrides.pop("slots", None)
        plan = build(str(name), shape, **overrides)
        return _merge(plan.to_dict(), {"slots": slots}, shape) if slots else plan
    path = Path(name)
    if not path.is_file():
        kind = no_file(path, "no such file") if path.suffix in (".yaml", ".yml") else "neither a file nor a preset"
        raise UserError(f"plan {str(name)!r}: {kind}; {suggest(str(name), PRESETS)}")
    try:
        stored = read_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # an impossible date is a ValueError
        raise UserError(f"plan {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(stored, Mapping):
        raise UserError(f"plan {path} is empty or not a mapping; see docs/plans.md")
    return _merge(dict(stored), overrides, shape)


def _merge(stored: dict[str, Any], overrides: Mapping[str, Any], shape: ModelShape) -> Plan:
    return Plan.from_dict(_deep(stored, overrides), shape.layers).check(shape)


def _deep(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _deep(merged[key], value) if both else value
    return merged
