"""The plan of every row, from what the table says of it, and windows of the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import UserError, suggest
from ..describe import PER_TOKEN, bytes_at, fixed_bytes, state_bytes
from ..plan import ModelShape, Plan
from ..presets import PRESETS, build, load_plan, own_keys
from ..reach import Reach
from .table import Row, Table


def row_plans(table: Table, shape: ModelShape) -> dict[str, Plan]:
    """The checked plan of each row that can be built, in the table's order."""
    plans: dict[str, Plan] = {}
    for row in table.rows:
        if not row.needs:
            try:
                plans[row.name] = _plan(table, row, plans, shape)
            except UserError as error:
                raise UserError(f"row {row.name!r}: {error}") from error
    return plans


def beyond_window(plan: Plan, table: Table, shape: ModelShape) -> int:
    """Bytes after `table.context` tokens that the table's window and sinks alone do not have."""
    alone = build("swa", shape, window=table.window, sinks=table.sinks)
    return bytes_at(plan, shape, table.context) - bytes_at(alone, shape, table.context)


def same_bytes_window(plan: Plan, shape: ModelShape, sinks: int) -> int:
    """The smallest window that, with `sinks`, keeps at least as many bytes as the state of `plan`.

    Raises UserError when that state grows with the text.
    """
    if state_bytes(plan, shape)[PER_TOKEN]:
        raise UserError("the state grows with the text, so no window has the same bytes")
    counters = state_bytes(plan, shape)["counters"]
    token = shape.layers * 2 * shape.kv_heads * shape.head_dim * shape.bytes_per_element
    tokens = -(-(fixed_bytes(plan, shape) - counters) // token)
    return max(1, tokens - sinks + 1)


def _plan(table: Table, row: Row, plans: Mapping[str, Plan], shape: ModelShape) -> Plan:
    if row.plan is None:
        return plans[row.start]
    if row.same_bytes is not None:
        return _same_bytes(table, row, plans, shape)
    return plan_from(row.plan, shape, table.window, table.sinks)


def plan_from(spec: Any, shape: ModelShape, window: int, sinks: int) -> Plan:
    """The checked plan of a preset's name, of `{preset: NAME, field: value}`, or of an inline plan, whose attention is
    this window unless it says otherwise. Raises UserError for anything else."""
    if isinstance(spec, str):
        spec = {"preset": spec}
    if not isinstance(spec, Mapping):
        raise UserError(f"plan is {spec!r}; give a preset's name or a mapping")
    values = dict(spec)
    if "preset" in values:
        return _preset(str(values.pop("preset")), values, shape, window, sinks)
    attention = {"kind": "window", "window": window, "sinks": sinks}
    return Plan.from_dict({"attention": attention, **values}, shape.layers).check(shape)


def _preset(name: str, values: Mapping[str, Any], shape: ModelShape, window: int, sinks: int) -> Plan:
    if name not in PRESETS:
        raise UserError(f"preset {name!r} is unknown; {suggest(name, PRESETS)}")
    values = dict(values)
    layers = values.pop("place", None)
    sizes = {"window": window, "sinks": sinks, "segment": window}
    reach = {key: size for key, size in sizes.items() if key in own_keys(name)}
    if layers is None:
        return load_plan(name, shape, reach | values)
    layers = _checked_layers(layers, shape.layers)
    small = load_plan(name, replace(shape, layers=len(layers)), reach | values)
    return placed(small, layers, Reach("window", window, sinks), shape.layers).check(shape)


def placed(plan: Plan, layers: Sequence[int], others: Reach, depth: int) -> Plan:
    """The plan of a model of len(layers) layers put into these layers of a deeper one, whose others have one reach.

    A slot that is named after the layer that writes it, as `l0`, follows it.
    """
    reaches = [others] * depth
    for layer, reach in zip(layers, plan.layers, strict=True):
        reaches[layer] = reach
    slots = {
        f"l{layers[slot.write]}" if name == f"l{slot.write}" else name: replace(
            slot, write=layers[slot.write], read=tuple(layers[reader] for reader in slot.read)
        )
        for name, slot in plan.slots.items()
    }
    return Plan(tuple(reaches), slots)


def _checked_layers(layers: Any, depth: int) -> list[int]:
    """The layers in order. Raises UserError for anything but different layers of the model."""
    whole = isinstance(layers, list | tuple) and all(type(layer) is int for layer in layers)
    if not whole or not layers or len(set(layers)) < len(layers) or not 0 <= min(layers) <= max(layers) < depth:
        raise UserError(f"place is {layers!r}; give a list of different layers out of 0 to {depth - 1}")
    return sorted(layers)


def _same_bytes(table: Table, row: Row, plans: Mapping[str, Plan], shape: ModelShape) -> Plan:
    name = row.same_bytes
    if len(row.plan) > 1:
        raise UserError("same_bytes stands alone; the plan is a window and the table's sinks")
    if name == row.name:
        raise UserError("same_bytes names the row itself; name the row whose bytes the window is to have")
    if name not in plans:
        raise UserError(f"same_bytes names {name!r}, no row above it; {suggest(str(name), plans)}")
    other = table.row(name, "same_bytes").same_bytes
    if other is not None:
        raise UserError(f"same_bytes names {name!r}, itself a window of the bytes of {other!r}; name {other!r}")
    return build("swa", shape, window=same_bytes_window(plans[name], shape, table.sinks), sinks=table.sinks)
