"""A budget in bytes and the measured rankings become a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anchorlm.core import MOST, UserError, quantity, suggest
from anchorlm.describe import PER_TOKEN, fixed_bytes, state_bytes
from anchorlm.plan import ModelShape, Plan, Reach

from .scan import neighbours

FULL, HEADS, SLOTS = "full", "heads", "slots"
KEEPS = (FULL, HEADS, SLOTS)
SHORT = {"mixed": "full,slots"}
FAVOUR = 4  # kept tokens of a KV head that is known to need the past, to one of any other head
UNITS = {"": 1, "B": 1} | {f"{letter}{b}": 10**power for letter, power in zip("KMG", (3, 6, 9)) for b in ("", "B")}

Unit = Any  # what is placed: a layer, or one KV head as (layer, head)


@dataclass(frozen=True)
class Kind:
    """One way to give a layer memory. ranked_by: the score that says where; shared: neighbours may read one state."""

    ranked_by: str
    shared: bool = False


KINDS: dict[str, Kind] = {
    FULL: Kind("greedy"),
    HEADS: Kind("heads"),
    "swiglu-ttt": Kind("window", shared=True),
    "linear": Kind("window", shared=True),
    "delta": Kind("window", shared=True),
    "kept": Kind("oracle"),
}


@dataclass(frozen=True)
class Need:
    """What the plan is for. context: tokens a full layer must hold; kept: exact tokens of a KV head, on average.

    keep: `full` attention in layers, in single KV `heads`, or `slots`; several with commas, the preferred first.
    """

    shape: ModelShape
    window: Reach
    context: int
    budget: int
    keep: str = FULL
    rule: str = "swiglu-ttt"
    kept: int = 128

    @property
    def keeps(self) -> list[str]:
        return [part.strip() for part in SHORT.get(self.keep, self.keep).split(",")]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that may be used, the preferred first."""
        return tuple(self.rule if part == SLOTS else part for part in self.keeps)

    @property
    def sources(self) -> set[str]:
        """The scores that must be measured."""
        return {KINDS[kind].ranked_by for kind in self.kinds}

    def check(self) -> Need:
        """Raise UserError for an unknown kind and for a budget that holds no state."""
        for part in self.keeps:
            if part in SHORT:
                raise UserError(f"--keep {self.keep!r}: {part} stands for {SHORT[part]} and is named alone")
            if part not in KEEPS:
                raise UserError(f"--keep {part!r} is unknown; {suggest(part, (*KEEPS, *SHORT))}")
        if len(set(self.keeps)) < len(self.keeps):
            raise UserError(f"--keep {self.keep!r} names a kind twice; name each once")
        if SLOTS in self.keeps[:-1]:
            raise UserError(f"--keep {self.keep!r} has slots before another kind; name slots last")
        rules = [kind for kind in KINDS if kind not in (FULL, HEADS)]
        if self.rule not in rules:
            raise UserError(f"--rule {self.rule!r} cannot be placed; {suggest(self.rule, rules)}")
        least = min(self.kinds, key=self.size)
        if self.budget < self.size(least):
            smallest = "full in one KV head" if least == HEADS else f"{least} in one layer"
            raise UserError(
                f"--budget is {self.budget:,} bytes; the smallest state, {smallest}, takes {self.size(least):,}"
            )
        return self

    def size(self, kind: str) -> int:
        """Bytes that one layer (one head, for `heads`) with this memory adds to a window in every layer."""
        if kind in (FULL, HEADS):
            return self.context * self.token // (self.shape.kv_heads if kind == HEADS else 1)
        return fixed_bytes(self._with_slot(self.plan, [0]), self.shape) - fixed_bytes(self.plan, self.shape)

    def full_size(self, plan: Plan) -> int:
        """Bytes that the plan's full attention holds."""
        return self.context * state_bytes(plan, self.shape)[PER_TOKEN]

    def added(self, plan: Plan) -> int:
        """Bytes that the plan adds to a window in every layer; where heads keep everything, their window counts too."""
        slots = Plan(self.plan.layers, plan.slots)
        return self.full_size(plan) + fixed_bytes(slots, self.shape) - fixed_bytes(self.plan, self.shape)

    @property
    def token(self) -> int:
        """Bytes of one token's key and value in one layer."""
        return state_bytes(Plan((Reach(),)), replace(self.shape, layers=1))[PER_TOKEN]

    @property
    def plan(self) -> Plan:
        """The window in every layer."""
        return Plan((self.window,) * self.shape.layers)

    def _with_slot(self, plan: Plan, group: Sequence[int]) -> Plan:
        """The plan and a slot written by the group's first layer and read by all of it."""
        if self.rule == "kept":
            return self.with_kept(plan, f"l{group[0]}", group, "kv", self.kept)
        entry = {"rule": self.rule, "write": group[0], "read": list(group), "chunk": self.window.window}
        return self._with(plan, f"l{group[0]}", entry)

    def with_kept(self, plan: Plan, name: str, group: Sequence[int], heads: Any, tokens: int, chunk: int = 64) -> Plan:
        """The plan and a slot of exact tokens, for all KV heads ("kv") or some; no chunk is longer than a window."""
        entry = {"rule": "kept", "write": group[0], "read": list(group), "chunk": min(self.window.window or 1, chunk)}
        return self._with(plan, name, entry | {"heads": heads, "options": {"tokens": tokens}})

    def _with(self, plan: Plan, name: str, entry: dict[str, Any]) -> Plan:
        slots = Plan.from_dict({"slots": {name: entry}}, self.shape.layers).slots
        return Plan(plan.layers, plan.slots | slots)


@dataclass(frozen=True)
class Choice:
    """The plan, what was placed by kind, the bytes it adds to a window in every layer, and lines about it."""

    plan: Plan
    placed: dict[str, list[Unit]]
    size: int
    notes: list[str] = field(default_factory=list)


def choose(need: Need, rankings: Mapping[str, Sequence[Unit]]) -> Choice:
    """Fill the budget: kind after kind in the order of `need`, each by its own ranking, the best first.

    rankings: score -> layers whose gain is clear, the best first; for heads (layer, KV head). What sees everything
    already is passed over. A layer beside one that has a shared slot joins it for no bytes. Where single heads are
    ranked, those of layers with kept tokens get `FAVOUR` times the tokens of the others, in as many bytes.
    """
    taken: dict[str, list[Unit]] = {kind: [] for kind in need.kinds}
    for kind in need.kinds:
        for unit in rankings[KINDS[kind].ranked_by]:
            more = {**taken, kind: [*taken[kind], unit]}
            if not _heads_of(need, unit) <= _full_heads(need, taken) and _spent(need, more) <= need.budget:
                taken = more
    plan = _plan(need, taken, set(rankings.get(KINDS[HEADS].ranked_by, ())))
    missing = [(kind, "head" if kind == HEADS else "layer") for kind in need.kinds if not taken[kind]]
    notes = [f"{kind}: no {unit}'s gain is clear, so none was placed" for kind, unit in missing]
    return Choice(plan.check(need.shape), taken, need.added(plan), notes)


def _heads_of(need: Need, unit: Unit) -> set[tuple[int, int]]:
    """(layer, KV head) of each head of a layer, or of the one head that is named."""
    return {unit} if isinstance(unit, tuple) else {(unit, head) for head in range(need.shape.kv_heads)}


def _full_heads(need: Need, taken: Mapping[str, Sequence[Unit]]) -> set[tuple[int, int]]:
    """Every head that keeps full attention, in whole layers and alone."""
    units = [*taken.get(FULL, ()), *taken.get(HEADS, ())]
    return {head for unit in units for head in _heads_of(need, unit)}


def _slots(taken: Mapping[str, Sequence[Unit]]) -> list[tuple[str, list[int]]]:
    """(rule, layers) of each slot: neighbours share a state where the rule's can be shared."""
    return [
        (kind, group)
        for kind, layers in taken.items()
        if kind not in (FULL, HEADS)
        for group in (neighbours(layers) if KINDS[kind].shared else [[layer] for layer in sorted(layers)])
    ]


def _spent(need: Need, taken: Mapping[str, Sequence[Unit]]) -> int:
    slots = sum(need.size(kind) for kind, _ in _slots(taken))
    return slots + len(_full_heads(need, taken)) * need.size(HEADS)


def _plan(need: Need, taken: Mapping[str, Sequence[Unit]], needy: set[tuple[int, int]]) -> Plan:
    """needy: (layer, KV head) of the heads that are known to need the past."""
    full = sorted(_full_heads(need, taken))
    layers = range(need.shape.layers)
    plan = Plan(tuple(_reach(need, [head for layer, head in full if layer == i]) for i in layers))
    if divided := _divided(need, taken.get("kept", ()), needy, full):
        for layer, heads, tokens in divided:
            plan = need.with_kept(plan, f"l{layer}h{''.join(map(str, heads))}", [layer], heads, tokens)
        return plan
    for _, group in _slots(taken):
        plan = need._with_slot(plan, group)
    return plan


def _divided(
    need: Need, layers: Sequence[int], needy: set[tuple[int, int]], full: Sequence[tuple[int, int]]
) -> list[tuple[int, tuple[int, ...], int]]:
    """(layer, KV heads, tokens) of each slot of kept tokens, in all as many as `need.kept` for every head.

    Empty where no head of these layers stands out.
    """
    heads = [(layer, head) for layer in sorted(layers) for head in range(need.shape.kv_heads)]
    parts = {head: FAVOUR if head in needy else 1 for head in heads if head not in full}
    if len(set(parts.values())) < 2:
        return []
    unit = need.kept * len(parts) // sum(parts.values())
    groups: dict[tuple[int, int], list[int]] = {}
    for (layer, head), part in parts.items():
        groups.setdefault((layer, part), []).append(head)
    return [(layer, tuple(some), part * unit) for (layer, part), some in groups.items() if unit]


def _reach(need: Need, full: Sequence[int]) -> Reach:
    """The window, with full attention in these KV heads."""
    if len(full) == need.shape.kv_heads:
        return Reach()
    return replace(need.window, heads=tuple((head, Reach()) for head in full))


def parse_size(text: str | int) -> int:
    """Bytes of `2MB`, `590KB`, `1_000_000` or `1.5 GB` (decimal units). UserError for anything else and above MOST."""
    size = quantity(text, UNITS)
    if size is None:
        raise UserError(f"--budget {str(text)!r} is not a size up to {MOST:,}; write 2MB, 590KB or 1_000_000")
    return size
