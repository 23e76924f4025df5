"""A budget in bytes and the measured rankings become a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anchorlm.core import UserError, suggest
from anchorlm.describe import PER_TOKEN, fixed_bytes, state_bytes
from anchorlm.plan import ModelShape, Plan, Reach
from anchorlm.rules import RULES

from .scan import neighbours

FULL = "full"
KEEPS = ("full", "slots", "mixed")
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True)
class Kind:
    """One way to give a layer memory. ranked_by: the score that says where; shared: neighbours may read one state."""

    ranked_by: str
    shared: bool = False


KINDS: dict[str, Kind] = {
    FULL: Kind("greedy"),
    "swiglu-ttt": Kind("window", shared=True),
    "linear": Kind("window", shared=True),
    "delta": Kind("window", shared=True),
    "kept": Kind("oracle"),
}


@dataclass(frozen=True)
class Need:
    """What the plan is for. context: tokens a full layer must hold; kept: tokens of a slot that keeps exact ones."""

    shape: ModelShape
    window: Reach
    context: int
    budget: int
    keep: str = FULL
    rule: str = "swiglu-ttt"
    kept: int = 128

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that may be used, the preferred first."""
        return {FULL: (FULL,), "slots": (self.rule,), "mixed": (FULL, self.rule)}[self.keep]

    @property
    def sources(self) -> set[str]:
        """The scores that must be measured."""
        return {KINDS[kind].ranked_by for kind in self.kinds}

    def check(self) -> Need:
        """Raise UserError for an unknown kind and for a budget that holds no state."""
        if self.keep not in KEEPS:
            raise UserError(f"keep {self.keep!r} is unknown; {suggest(self.keep, KEEPS)}")
        rules = [rule for rule in KINDS if rule in RULES]
        if self.rule not in rules:
            raise UserError(f"rule {self.rule!r} cannot be placed; {suggest(self.rule, rules)}")
        least = min(self.kinds, key=self.size)
        if self.budget < self.size(least):
            raise UserError(
                f"budget is {self.budget:,} bytes; the smallest state, {least} in one layer, takes {self.size(least):,}"
            )
        return self

    def size(self, kind: str) -> int:
        """Bytes that one layer with this memory adds to a window in every layer."""
        if kind == FULL:
            return self.context * self.token
        return fixed_bytes(self._with_slot(self.plan, [0]), self.shape) - fixed_bytes(self.plan, self.shape)

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
        entry: dict[str, Any] = {"rule": self.rule, "write": group[0], "read": list(group)}
        entry |= {"chunk": min(self.window.window or 1, 64)} if self.rule == "kept" else {"chunk": self.window.window}
        entry |= {"options": {"tokens": self.kept}} if self.rule == "kept" else {}
        slots = Plan.from_dict({"slots": {f"l{group[0]}": entry}}, self.shape.layers).slots
        return Plan(plan.layers, plan.slots | slots)


@dataclass(frozen=True)
class Choice:
    """The plan, the layers by kind, the bytes it adds to a window in every layer, and lines about it."""

    plan: Plan
    layers: dict[str, list[int]]
    size: int
    notes: list[str] = field(default_factory=list)


def choose(need: Need, rankings: Mapping[str, Sequence[int]]) -> Choice:
    """Fill the budget: by each kind's own ranking, best layer first, full attention before slots.

    rankings: score -> layers whose gain is clear, the best first. A layer beside one that has a shared slot joins it
    for no bytes.
    """
    taken: dict[str, list[int]] = {kind: [] for kind in need.kinds}
    for kind in need.kinds:
        used = {layer for layers in taken.values() for layer in layers}
        for layer in rankings[KINDS[kind].ranked_by]:
            if layer not in used and _spent(need, {**taken, kind: [*taken[kind], layer]}) <= need.budget:
                taken[kind].append(layer)
    plan = _plan(need, taken)
    notes = [f"{kind}: no layer's gain is clear, so none was placed" for kind in need.kinds if not taken[kind]]
    return Choice(plan.check(need.shape), taken, _spent(need, taken), notes)


def _groups(kind: str, layers: Sequence[int]) -> list[list[int]]:
    return neighbours(layers) if kind != FULL and KINDS[kind].shared else [[layer] for layer in sorted(layers)]


def _spent(need: Need, taken: Mapping[str, Sequence[int]]) -> int:
    return sum(need.size(kind) * len(_groups(kind, layers)) for kind, layers in taken.items())


def _plan(need: Need, taken: Mapping[str, Sequence[int]]) -> Plan:
    full = set(taken.get(FULL, ()))
    plan = Plan(tuple(Reach() if i in full else need.window for i in range(need.shape.layers)))
    for kind, layers in taken.items():
        for group in _groups(kind, layers) if kind != FULL else ():
            plan = need._with_slot(plan, group)
    return plan


def parse_size(text: str | int) -> int:
    """Bytes of `2MB`, `590KB`, `1_000_000` or `1.5 GB` (decimal units). Raises UserError for anything else."""
    found = re.fullmatch(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([kmg]?b?)\s*", str(text), re.IGNORECASE)
    unit = found[2].upper() if found else ""
    unit += "B" if unit in ("K", "M", "G") else ""
    if found is None or unit not in UNITS:
        raise UserError(f"budget {str(text)!r} is not a size; write 2MB, 590KB or 1_000_000")
    return round(float(found[1].replace("_", "")) * UNITS[unit])
