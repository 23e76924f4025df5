"""The parts of a slot that stand by themselves: what a reader does to an answer, and how it joins its attention.

Nothing here needs weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from .core import LARGEST, UserError
from .rules import one_of, whole

HEADS = ("q", "kv")
MAPS = ("none", "dense", "cayley", "expm", "planes")


def short(part: Any) -> dict[str, Any]:
    """The fields that say something else than the default, and the kind."""
    given = {f.name: (getattr(part, f.name), f.default) for f in fields(part)}
    return {name: value for name, (value, default) in given.items() if name == "kind" or value != default}


@dataclass(frozen=True)
class ReadMap:
    """A reader's map on what it reads: a stretch, then a rotation; the identity at the start."""

    kind: str = "cayley"
    planes: int = 8

    def check(self, where: str, head_dim: int) -> None:
        one_of(self.kind, MAPS, f"{where}.kind")
        whole(self.planes, 1, f"{where}.planes")
        if self.kind == "planes" and 2 * self.planes > head_dim:
            raise UserError(f"{where}.planes is {self.planes}; a head of {head_dim} has at most {head_dim // 2} planes")


# What a mixer starts at where it learns its share: of convex and shared the weight of one side, of sum a factor.
MIXES: dict[str, float | None] = {
    "add": None, "sum": 1.0, "convex": 1 / (1 + math.exp(4.0)), "shared": 0.1, "residual": None, "joint": None,
}  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """How a layer joins what it read, m, to its attention, a.

    add: a + g m, with a gate g = silu(linear(x)) for each head, 0 at the start. sum: s a + m, s learned for each head.
    convex: (1 - g) a + g m, with a learned gate for each channel. shared: one normaliser for both,
    (s N_a + N_m) / (s Z_a + Z_m), N_a and Z_a taken relative to the highest logit of the window and s learned for each
    head; `affine` multiplies N_m and Z_m by 1 - s. residual: after the output projection, through one of its own that
    starts at 0. joint: the keys that were read enter attention's own softmax.
    share: g or s as a constant, not learned. start: what a learned one begins at. gate: what the gate of add and convex
    looks at, the layer's "input" or its "query": all heads' queries before RoPE, at unit mean square (Titan-Llama,
    arXiv 2610.19210).
    """

    kind: str = "add"
    share: float | None = None
    start: float | None = None
    affine: bool = False
    gate: str = "input"

    def check(self, where: str) -> None:
        one_of(self.kind, tuple(MIXES), f"{where}.kind" if self != Mix(self.kind) else where)
        for name in ("share", "start"):
            value = getattr(self, name)
            if value is not None and MIXES[self.kind] is None:
                raise UserError(f"{where}.{name} is {value!r}; mix {self.kind!r} has none")
            if value is not None:
                self._check_number(value, f"{where}.{name}")
        if self.share is not None and self.start is not None:
            raise UserError(f"{where}.start is {self.start!r} but share is {self.share!r}: a constant has no start")
        if self.affine and self.kind != "shared":
            raise UserError(f"{where}.affine is {self.affine!r}; only mix 'shared' has it")
        one_of(self.gate, ("input", "query"), f"{where}.gate")
        if self.gate == "query" and (self.kind not in ("add", "convex") or self.share is not None):
            raise UserError(f"{where}.gate is 'query'; only mix 'add' and a learned 'convex' have a gate")

    def _check_number(self, value: Any, where: str) -> None:
        most = LARGEST if self.kind == "sum" else 1
        number = not isinstance(value, bool) and isinstance(value, (int, float))
        if not number or not 0 < value < most:
            limit = "" if self.kind == "sum" and (not number or value < most) else f" and below {most:,}"
            raise UserError(f"{where} is {value!r}; it must be a number above 0{limit}")

    @property
    def begin(self) -> float:
        """Where the share stands before any training."""
        chosen = self.share if self.share is not None else self.start
        return chosen if chosen is not None else float(MIXES[self.kind] or 0.0)

    def stored(self) -> str | dict[str, Any]:
        """The kind alone where nothing else is said."""
        return self.kind if self == Mix(self.kind) else short(self)


def check_heads(heads: str | tuple[int, ...], kv_heads: int, where: str) -> None:
    """Raise UserError unless these are "q", "kv" or some of the model's KV heads, each once and in order."""
    if not isinstance(heads, tuple):
        one_of(heads, HEADS, where)
        return
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < kv_heads:
            raise UserError(f"{where} names head {head!r}; the model has KV heads 0 to {kv_heads - 1}")
    if not heads or list(heads) != sorted(set(heads)):
        raise UserError(f"{where} is {list(heads)}; name at least one KV head, each once and in order")
