"""A plan in words and exact bytes, from shapes alone: no weights are needed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

from .core import MOST, UserError, not_whole
from .linear_rules import GlaOptions, GsaOptions
from .plan import ModelShape, Plan, Reach, Slot
from .rules import WIDE_BYTES, RuleOptions

LONG = 1000  # tokens: a half-life that one would call memory
PER_TOKEN = "full attention per token"
PARTS = (
    "fast weights",
    "momentum",
    "kept tokens",
    "chunk buffer",
    "window ring",
    "sinks",
    "counters",
    PER_TOKEN,
)


def describe(plan: Plan, shape: ModelShape) -> list[dict[str, Any]]:
    """One row for each run of equal layers: layers, attention, slots written and read."""
    rows: list[dict[str, Any]] = []
    for layer, reach in enumerate(plan.layers):
        row = {
            "layers": (layer, layer),
            "attention": reach.text(),
            "writes": ", ".join(plan.writes(layer)),
            "reads": ", ".join(plan.reads(layer)),
        }
        if rows and all(rows[-1][key] == row[key] for key in ("attention", "writes", "reads")):
            rows[-1]["layers"] = (rows[-1]["layers"][0], layer)
        else:
            rows.append(row)
    return [row | {"layers": _range(*row["layers"])} for row in rows]


def layers_text(layers: Iterable[int]) -> str:
    """Layers as `--layers` takes them, neighbours as a range: 0-1, 7, 26-29; - for none."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(_range(*run) for run in runs) or "-"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def describe_slots(plan: Plan, shape: ModelShape) -> list[dict[str, Any]]:
    """One row a slot: rule, chunk, lag, heads, writer, readers, read map and the bytes of its fast weights."""
    return [
        {
            "slot": name,
            "rule": slot.rule,
            "chunk": slot.chunk,
            "lag": slot.lag,
            "heads": _heads(slot, shape),
            "writer": slot.write,
            "readers": ", ".join(map(str, slot.read)),
            "map": slot.map.kind,
            "bytes": _state_bytes(slot, shape),
        }
        for name, slot in plan.slots.items()
    ]


def state_bytes(plan: Plan, shape: ModelShape) -> dict[str, int]:
    """Bytes of one sequence's state by part, each at its largest; they do not depend on the length of the text.

    "full attention per token" is the exception: what each further token adds where attention sees everything.
    """
    total: dict[str, int] = dict.fromkeys(PARTS, 0)
    total["counters"] = 8
    for reach, heads in (group for layer in plan.layers for group in layer.groups(shape.kv_heads).items()):
        for part, size in _attention_bytes(reach, _token_bytes(shape, len(heads))).items():
            total[part] += size
    for slot in plan.slots.values():
        for part, size in _slot_bytes(slot, shape).items():
            total[part] += size
    return total


def fixed_bytes(plan: Plan, shape: ModelShape) -> int:
    """Bytes of one sequence's state that do not grow with the text, each part at its largest."""
    return sum(size for part, size in state_bytes(plan, shape).items() if part != PER_TOKEN)


def bytes_at(plan: Plan, shape: ModelShape, tokens: int) -> int:
    """Bytes of the state after `tokens` tokens."""
    return fixed_bytes(plan, shape) + tokens * state_bytes(plan, shape)[PER_TOKEN]


def _token_bytes(shape: ModelShape, heads: int | None = None) -> int:
    """One token's key and value in one layer, of so many KV heads or of all."""
    return 2 * (shape.kv_heads if heads is None else heads) * shape.head_dim * shape.bytes_per_element


def _attention_bytes(reach: Reach, token: int) -> dict[str, int]:
    """Of heads with one reach, `token` bytes a token. A window counts the current one: window - 1 are kept between."""
    if reach.kind == "none":
        return {}
    if reach.limit is None:
        return {PER_TOKEN: token}
    kept = reach.limit - 1
    return {"window ring": kept * token, "sinks": reach.sinks * token}


def _heads(slot: Slot, shape: ModelShape) -> str:
    which = slot.heads if isinstance(slot.heads, str) else f"kv {', '.join(map(str, slot.heads))}"
    return f"{slot.state_heads(shape)} ({which})"


def _state_bytes(slot: Slot, shape: ModelShape) -> int:
    """The slot's state without momentum, which the literature does not count either."""
    return sum(size for part, size in rule_bytes(slot, shape).items() if part != "momentum")


def rule_bytes(slot: Slot, shape: ModelShape) -> dict[str, int]:
    """Bytes of the slot's state by part, as its rule says. Raises UserError for what are no bytes of a known part."""
    options = slot.rule_options
    found = options.state_bytes(slot.state_heads(shape), shape.head_dim, shape.bytes_per_element)
    known = PARTS[:3]
    if not isinstance(found, dict) or not all(
        part in known and not not_whole(size, 0, MOST) for part, size in found.items()
    ):
        raise UserError(
            f"rule {slot.rule!r} ({inspect.getsourcefile(type(options))}): state_bytes gives {found!r}; it must be a "
            f"dictionary of whole numbers of at least 0 by part, of {', '.join(known)}"
        )
    return found


def _slot_bytes(slot: Slot, shape: ModelShape) -> dict[str, int]:
    """A chunk is written when its last token (and `lag` more chunks) arrived, so one token less is ever held.

    A slot that takes token by token holds none: what leaves the window is in its ring until it does.
    """
    heads, options = slot.state_heads(shape), slot.rule_options
    held = max(0, slot.delay - 1)
    token = _token_bytes(shape, len(slot.taken(shape)))
    tail = max(0, slot.conv - 1) * _token_bytes(shape)
    return rule_bytes(slot, shape) | {
        "chunk buffer": held * (token + options.token_elements(heads) * WIDE_BYTES) + tail
    }


def notes(plan: Plan, shape: ModelShape) -> list[str]:
    """What a table cannot say: how fast memories fade, how others count their bytes, what sharing them saves."""
    lines: list[str] = []
    for options in dict.fromkeys(slot.rule_options for slot in plan.slots.values()):
        named = {name: slot for name, slot in plan.slots.items() if slot.rule_options == options}
        label = next(iter(named)) if len(named) == 1 else f"{next(iter(named))} to {list(named)[-1]}"
        if options.half_life is not None:
            lines.append(f"{label}: {_fading(options, plan)}")
        evicted = sum(_state_bytes(s, shape) for s in named.values() if s.lag == "evicted" and s.rule == "hedgehog")
        if evicted:
            twice = f"counted as the public LoLCATs cache keeps it, every state twice, {2 * evicted:,}"
            lines.append(f"{label}: {evicted:,} bytes of memory; {twice}")
    return lines + _sharing(plan, shape)


def _sharing(plan: Plan, shape: ModelShape) -> list[str]:
    """The bytes of states that several layers read, against a state of its own in each of them."""
    shared = [(_state_bytes(slot, shape), len(slot.read)) for slot in plan.slots.values() if len(slot.read) > 1]
    if not shared:
        return []
    once, readers = sum(size for size, _ in shared), sum(count for _, count in shared)
    private = sum(size * count for size, count in shared)
    states = f"{len(shared)} shared state{'s' if len(shared) > 1 else ''}"
    return [f"{states}, {once:,} bytes, read by {readers} layers; a state of its own in each would take {private:,}"]


def _fading(options: RuleOptions, plan: Plan) -> str:
    """The half-life of an untrained memory, and of a gate by the key what a long one would take."""
    beside = f", beside a window of {plan.common_window:,}" if plan.common_window else ""
    if not isinstance(options, (GlaOptions, GsaOptions)):
        return f"the memory halves every {options.half_life:,.0f} tokens before training{beside}"
    share = 0.5 ** (options.temperature / LONG)
    needed = math.log(share / (1 - share))
    return (
        f"the memory halves every {options.half_life:,g} tokens where keys are zero{beside}; "
        f"a half-life of {LONG:,} tokens takes keys of {needed:.1f} or more"
    )
