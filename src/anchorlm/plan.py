"""A plan says, as data, how far each layer's attention reaches and which memory slots exist.

A slot is a named recurrent state with one rule, one writing layer and any number of reading layers.
Layers are counted from 0. Nothing here needs weights: a plan is validated against a `ModelShape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn

from . import linear_rules as linear_rules
from .core import UserError, suggest
from .plan_parts import Mix, ReadMap, check_heads
from .reach import Heads, Reach, commonest
from .rules import RULES, RuleOptions, known_rule, mapping, number_range, one_of, strict, truth, whole
from .shape import ModelShape

ROPES = ("none", "absolute", "chunk")
ACTIVATIONS = ("identity", "silu")
LAGS = ("self", "evicted", "chunk", "segment")

_NAMES_TAKEN = nn.ModuleDict()  # a slot's weights live in one under the slot's name


@dataclass(frozen=True)
class Slot:
    """One recurrent state: its rule, its chunk in tokens, its writer and readers, and how readers join it."""

    write: int
    read: tuple[int, ...]
    rule: str = "swiglu-ttt"
    chunk: int = 512
    lag: int | str = 0
    heads: str | tuple[int, ...] = "q"
    map: ReadMap = field(default_factory=ReadMap)
    mix: Mix = field(default_factory=Mix)
    rope: str = "none"
    act: str = "identity"
    norm: bool = True
    conv: int = 0
    silent: bool = True
    gap: bool = False
    detach: int = 0
    options: RuleOptions | None = None

    @property
    def rule_options(self) -> RuleOptions:
        return self.options if self.options is not None else RULES[self.rule]()

    def taken(self, shape: ModelShape) -> Heads:
        """The KV heads of the writing layer whose keys and values the slot takes."""
        return tuple(range(shape.kv_heads)) if isinstance(self.heads, str) else self.heads

    def state_heads(self, shape: ModelShape) -> int:
        return shape.query_heads if self.heads == "q" else len(self.taken(shape))

    @property
    def by_chunk(self) -> bool:
        """Whether tokens become readable a whole chunk at a time; otherwise one by one."""
        return self.lag not in ("self", "evicted")

    @property
    def behind(self) -> int:
        """Completed chunks that stay unread."""
        return self.lag if isinstance(self.lag, int) else 0

    @property
    def delay(self) -> int:
        """Tokens after which a token surely stands in the state; those before wait in a buffer of the slot."""
        return (self.behind + 1) * self.chunk if self.by_chunk else 0

    def check(self, where: str, shape: ModelShape) -> None:
        known_rule(self.rule, f"{where}.rule")
        self.mix.check(f"{where}.mix")
        for name, allowed in (("rope", ROPES), ("act", ACTIVATIONS)):
            one_of(getattr(self, name), allowed, f"{where}.{name}")
        check_heads(self.heads, shape.kv_heads, f"{where}.heads")
        whole(self.chunk, 1, f"{where}.chunk")
        for name in ("conv", "detach"):
            whole(getattr(self, name), 0, f"{where}.{name}")
        for name in ("norm", "silent", "gap"):
            truth(getattr(self, name), f"{where}.{name}")
        self.map.check(f"{where}.map", shape.head_dim)
        self.rule_options.check(f"{where}.options")
        self._check_lag(where)
        self._check_rule(where)
        self._check_layers(where, shape)

    def _check_lag(self, where: str) -> None:
        if isinstance(self.lag, str):
            one_of(self.lag, LAGS, f"{where}.lag")
        else:
            whole(self.lag, 0, f"{where}.lag")
        kind, allowed = self.lag if isinstance(self.lag, str) else "chunk", self.rule_options.lags
        if kind not in allowed:
            raise UserError(f"{where}.lag is {self.lag!r}; rule {self.rule!r} takes {_either(allowed)}")
        self.rule_options.check_lag(f"{where}.options", self.lag)

    def _check_rule(self, where: str) -> None:
        """A rule, the way its answers are joined and the slot's other fields must fit."""
        options, kind = self.rule_options, self.mix.kind
        if kind not in options.mixes:
            raise UserError(f"{where}.mix is {kind!r}; rule {self.rule!r} takes {_either(options.mixes)}")
        if isinstance(self.heads, tuple) and not options.joint:
            raise UserError(f"{where}.heads is {list(self.heads)}; rule {self.rule!r} takes q or kv, all of a layer")
        for name, plain in options.fixed.items():
            if getattr(self, name) != plain:
                raise UserError(
                    f"{where}.{name} is {getattr(self, name)!r}; rule {self.rule!r} takes {str(plain).lower()} alone"
                )
        if kind == "shared" and self.lag != "evicted":
            raise UserError(
                f"{where}.mix is 'shared' with lag {self.lag!r}; it takes lag 'evicted', or tokens count twice"
            )
        if kind == "shared" and self.norm:
            raise UserError(f"{where}.mix is 'shared' with norm true; sums under one normaliser take norm false")

    def _check_layers(self, where: str, shape: ModelShape) -> None:
        for name, layers in (("write", (self.write,)), ("read", self.read)):
            for layer in layers:
                if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < shape.layers:
                    allowed = f"the model has layers 0 to {shape.layers - 1}"
                    raise UserError(f"{where}.{name} names layer {layer!r}; {allowed}")
        if not self.read:
            raise UserError(f"{where}.read is empty; a slot that nobody reads has no use")
        if len(set(self.read)) != len(self.read):
            raise UserError(f"{where}.read names a layer twice: {list(self.read)}")
        if min(self.read) < self.write:
            raise UserError(
                f"{where}.read names layer {min(self.read)}, below its writer, layer {self.write}; "
                "a reader must be the writing layer or a later one"
            )


@dataclass(frozen=True)
class Plan:
    """Reach of every layer, and the slots by name. Validate with `check` before use."""

    layers: tuple[Reach, ...]
    slots: dict[str, Slot] = field(default_factory=dict)

    def check(self, shape: ModelShape) -> Plan:
        """Raise UserError, naming layer, field, value and what is allowed, unless the plan fits the shape."""
        if len(self.layers) != shape.layers:
            raise UserError(f"the plan has {len(self.layers)} layers; the model has {shape.layers}")
        for index, reach in enumerate(self.layers):
            reach.check(f"layer {index}", shape.kv_heads)
        for name, slot in self.slots.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise UserError(f"slot name {name!r} is not allowed; use letters, digits and _, starting with a letter")
            if hasattr(_NAMES_TAKEN, name):
                free = f"{name}_slot"
                raise UserError(f"slot name {name!r} is taken by torch modules; choose another, such as {free!r}")
            slot.check(f"slots.{name}", shape)
            self._check_segment(name, slot)
            self._check_gap(name, slot, shape)
            self._check_joint(name, slot, shape)
            self._check_evicted(name, slot)
        return self

    def _check_joint(self, name: str, slot: Slot, shape: ModelShape) -> None:
        """Exact tokens are read behind a window; what attention sees anyway must not be counted twice."""
        for layer in slot.read if slot.rule_options.joint else ():
            reach = self.layers[layer]
            if reach.kind != "window" or reach.positions == "none":
                found = (
                    f"layer {layer} of kind {reach.kind!r}" if reach.kind != "window" else f"layer {layer} without RoPE"
                )
                needs = "'window'" if reach.kind != "window" else "positions 'rope'"
                raise UserError(f"slots.{name}.read names {found}; rule {slot.rule!r} needs {needs}")
            if reach.own not in reach.groups(shape.kv_heads):
                raise UserError(
                    f"slots.{name}.read names layer {layer}, where every KV head has a reach of its own; rule "
                    f"{slot.rule!r} needs one that has the layer's"
                )
            unlike = [head for head in slot.heads if head not in reach.groups(shape.kv_heads)[reach.own]]
            if isinstance(slot.heads, tuple) and unlike:
                raise UserError(
                    f"slots.{name}.heads names head {unlike[0]}, which has a reach of its own in layer {layer}; rule "
                    f"{slot.rule!r} needs one that has the layer's"
                )
            slot.rule_options.check_window(
                f"slots.{name}.options", reach.window or 0, slot.delay - 1, shape.max_positions
            )

    def _check_evicted(self, name: str, slot: Slot) -> None:
        """What leaves a window is the same for the writer and every reader, and is written as the window held it."""
        layers = sorted({slot.write, *slot.read}) if slot.lag == "evicted" else []
        for layer in layers:
            reach, where = self.layers[layer], f"slots.{name}.lag is 'evicted', but layer {layer}"
            if reach.kind not in ("window", "terrace") or reach.sinks or reach.heads:
                raise UserError(f"{where} sees {reach.text()}; tokens leave a 'window' without sinks or a 'terrace'")
            if reach != self.layers[slot.write]:
                raise UserError(f"{where} sees {reach.text()} and layer {slot.write}, the writer, another part")
            if slot.rope != (rope := "absolute" if reach.positions == "rope" else "none"):
                raise UserError(f"slots.{name}.rope is {slot.rope!r} with lag 'evicted'; layer {layer} needs {rope!r}")

    def _check_segment(self, name: str, slot: Slot) -> None:
        for layer in slot.read if slot.lag == "segment" else ():
            reach = self.layers[layer]
            if reach.kind != "segment" or reach.segment != slot.chunk:
                seen = f"layer {layer} sees {reach.text()}"
                raise UserError(
                    f"slots.{name}.lag is 'segment' with chunk {slot.chunk}, but {seen}; both must be equal"
                )

    def _check_gap(self, name: str, slot: Slot, shape: ModelShape) -> None:
        """Up to (lag + 1) * chunk - window tokens are seen by neither branch unless the window covers them."""
        readers = [(i, part) for i in slot.read for part in self.layers[i].groups(shape.kv_heads)]
        for layer, reach in readers if slot.by_chunk else ():
            missing = 0 if reach.least is None else slot.delay - reach.least
            aligned = reach.kind == "segment" and slot.behind == 0 and slot.chunk == reach.segment
            if missing > 0 and not aligned and not slot.gap:
                raise UserError(
                    f"slots.{name}.chunk is {slot.chunk} with lag {slot.lag}, but layer {layer} sees {reach.text()}: "
                    f"up to {missing} tokens would be seen by neither; use (lag + 1) * chunk <= window, or gap: true"
                )

    def writes(self, layer: int) -> list[str]:
        return [name for name, slot in self.slots.items() if slot.write == layer]

    def reads(self, layer: int) -> list[str]:
        return [name for name, slot in self.slots.items() if layer in slot.read]

    @property
    def common_window(self) -> int | None:
        """The window that most windowed layers have; None when no layer has one."""
        return commonest(part.window for reach in self.layers for part in reach.parts)

    @property
    def common_reach(self) -> int | None:
        """The common window or, where no layer has one, the common segment."""
        return self.common_window or commonest(part.segment for reach in self.layers for part in reach.parts)

    def narrowed(self, share: float) -> Plan:
        """The same plan with every window and segment cut to `share` of it, at least one token."""

        def less(size: int | None) -> int | None:
            return size and max(1, int(size * share))

        def narrow(reach: Reach) -> Reach:
            return replace(reach, window=less(reach.window), segment=less(reach.segment))

        return replace(self, layers=tuple(reach.map(narrow) for reach in self.layers))

    def teacher(self) -> Plan:
        """The untouched model: full attention everywhere and no slot."""
        return Plan(layers=tuple(Reach() for _ in self.layers))

    def without_slots(self) -> Plan:
        """The same attention with every memory branch left out."""
        return replace(self, slots={})

    def select_slots(self, names: list[str]) -> Plan:
        """The same attention with only the named slots; for ablations."""
        return replace(self, slots={name: self.slots[name] for name in names})

    def to_dict(self) -> dict[str, Any]:
        """The explicit form that is stored: the most common reach, the other layers by number, every slot field."""
        common = max(set(self.layers), key=lambda reach: (self.layers.count(reach), -self.layers.index(reach)))
        named = {str(i): reach.to_dict() for i, reach in enumerate(self.layers) if reach != common}
        return {
            "attention": common.to_dict(),
            "layers": named,
            "slots": {n: _slot_dict(s) for n, s in self.slots.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], num_layers: int) -> Plan:
        """Read the stored or the short form. Raises UserError for unknown keys and layers out of range."""
        mapping(values, "the plan")
        for key in values:
            if key not in ("attention", "layers", "slots"):
                known = suggest(str(key), ["attention", "layers", "slots"])
                raise UserError(f"the plan has an unknown key {key!r}; {known}")
        common = Reach.from_dict(values.get("attention") or {}, "attention")
        named = _named_layers(mapping(values.get("layers") or {}, "layers"), common, num_layers)
        slots = mapping(values.get("slots") or {}, "slots")
        return cls(
            tuple(named.get(i, common) for i in range(num_layers)),
            {str(name): _slot(str(name), entry, num_layers) for name, entry in slots.items()},
        )


def _named_layers(entries: Mapping[Any, Any], common: Reach, num_layers: int) -> dict[int, Reach]:
    """The reach of each layer that `layers` names; naming one twice is an error, whatever the two say."""
    named: dict[int, Reach] = {}
    for key, entry in entries.items():
        reach = Reach.from_dict(entry, f"layers.{key}", common)
        for index in layer_range(str(key), num_layers, "layers"):
            if index in named:
                raise UserError(f"layers.{key} names layer {index} again; name each layer once")
            named[index] = reach
    return named


def layer_range(text: str, num_layers: int, where: str) -> list[int]:
    """The layers of `7` or `18-20`, checked against the depth."""
    layers = number_range(text)
    if layers is None:
        raise UserError(f"{where} names {text!r}; write a layer such as 7 or a range such as 18-20")
    if not layers or layers[-1] >= num_layers:
        raise UserError(f"{where} names layers {text!r}; the model has layers 0 to {num_layers - 1}")
    return list(layers)


def _slot(name: str, entry: Any, num_layers: int) -> Slot:
    where = f"slots.{name}"
    values = strict(Slot, entry, where)
    rule = known_rule(values.get("rule", "swiglu-ttt"), f"{where}.rule")
    values = {**rule.slot_defaults, **values}
    if "write" not in values:
        raise UserError(f"{where}.write is missing; name the layer that writes the slot")
    read = values.get("read", [values["write"]])
    values["read"] = tuple(_read_layers(read, num_layers, f"{where}.read"))
    for part, kind in (("map", ReadMap), ("mix", Mix)):
        given = values.get(part) or {}
        values[part] = kind(**strict(kind, {"kind": given} if isinstance(given, str) else given, f"{where}.{part}"))
    if isinstance(values.get("heads"), (list, tuple)):
        values["heads"] = tuple(values["heads"])
    options = values.get("options") or {}
    values["options"] = rule(**strict(rule, options, f"{where}.options"))
    return Slot(**values)


def _read_layers(read: Any, num_layers: int, where: str) -> list[int]:
    if isinstance(read, str):
        return [layer for part in read.split(",") for layer in layer_range(part, num_layers, where)]
    return list(read) if isinstance(read, (list, tuple)) else [read]


def _either(names: tuple[str, ...]) -> str:
    """`add, sum or convex`."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _slot_dict(slot: Slot) -> dict[str, Any]:
    values = asdict(replace(slot, options=None))
    heads = slot.heads if isinstance(slot.heads, str) else list(slot.heads)
    lists = {"heads": heads, "read": list(slot.read)}
    return values | lists | {"mix": slot.mix.stored(), "options": asdict(slot.rule_options)}
