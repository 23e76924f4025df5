"""The options of the linear memories, as data; importing this makes their rules known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from .core import UserError
from .rules import RULES, WIDE_BYTES, RuleOptions, one_of, positive, whole


@dataclass(frozen=True)
class LinearStateOptions(RuleOptions):
    """What the linear memories share: they take one token at a time, and can be read right after it."""

    fixed: ClassVar[dict[str, Any]] = {"act": "identity", "conv": 0}
    lags: ClassVar[tuple[str, ...]] = ("self", "chunk", "segment")


@dataclass(frozen=True)
class HedgehogOptions(LinearStateOptions):
    """A sum of values weighted by learned positive features, divided by the sum of the weights.

    width: features of each half, softmax(u W) and softmax(-u W) (Hedgehog, arXiv 2402.04347; LoLCATs, 2410.10254).
    features: "softmax", or "exp", each half relative to its highest entry.
    gate: "scalar" fades the whole state by sigmoid(w x + b) at each token, one number for all heads (Lizard, arXiv
        2507.09025); "none" keeps all.
    gate_start: what that sigmoid begins at. The paper leaves it open; 0.5 would forget within one token.
    """

    slot_defaults: ClassVar[dict[str, Any]] = {
        "lag": "evicted", "rope": "absolute", "mix": "shared", "map": {"kind": "none"}, "norm": False, "chunk": 64,
    }  # fmt: skip
    mixes: ClassVar[tuple[str, ...]] = ("add", "sum", "convex", "shared", "residual")
    lags: ClassVar[tuple[str, ...]] = ("self", "evicted", "chunk", "segment")
    width: int = 64
    features: str = "softmax"
    gate: str = "none"
    gate_start: float = 0.99

    def check(self, where: str) -> None:
        whole(self.width, 1, f"{where}.width")
        one_of(self.features, ("softmax", "exp"), f"{where}.features")
        one_of(self.gate, ("none", "scalar"), f"{where}.gate")
        positive(self.gate_start, f"{where}.gate_start")
        if self.gate_start >= 1:
            raise UserError(f"{where}.gate_start is {self.gate_start!r}; it must be below 1")

    def check_lag(self, where: str, lag: int | str) -> None:
        if lag == "evicted" and self.gate != "none":
            raise UserError(
                f"{where}.gate is {self.gate!r} with lag 'evicted'; the window keeps no layer input of a token that "
                "leaves it, so take lag 'self' or gate 'none'"
            )

    @property
    def half_life(self) -> float | None:
        return None if self.gate == "none" else math.log(0.5) / math.log(self.gate_start)

    def state_bytes(self, heads: int, dim: int, element: int) -> dict[str, int]:
        """Summed values and summed weights of each feature."""
        return {"fast weights": heads * 2 * self.width * (dim + 1) * WIDE_BYTES}

    def token_elements(self, heads: int) -> int:
        return int(self.gate != "none")


@dataclass(frozen=True)
class GlaOptions(LinearStateOptions):
    """Gated linear attention whose gate is the key itself: no parameter of its own (Liger, arXiv 2503.01496).

    variant: "gla" fades every key channel by sigmoid(k)^(1 / temperature) and writes softmax(k); "hgrn2" writes one
        minus that gate instead; "scalar" fades the whole state by the gate of the mean key.
    temperature: at a key of zero the memory halves every so many tokens.
    """

    slot_defaults: ClassVar[dict[str, Any]] = {
        "lag": "self", "heads": "kv", "mix": {"kind": "convex", "share": 0.5}, "map": {"kind": "none"}, "norm": False,
        "chunk": 16,
    }  # fmt: skip
    variant: str = "gla"
    temperature: float = 16.0

    def check(self, where: str) -> None:
        one_of(self.variant, ("gla", "hgrn2", "scalar"), f"{where}.variant")
        positive(self.temperature, f"{where}.temperature")

    @property
    def half_life(self) -> float:
        return float(self.temperature)

    def state_bytes(self, heads: int, dim: int, element: int) -> dict[str, int]:
        return {"fast weights": heads * dim * dim * WIDE_BYTES}


@dataclass(frozen=True)
class GsaOptions(LinearStateOptions):
    """Slots that each keep a share of themselves and take the rest of every token, read by softmax (GSA, arXiv
    2409.07146), gated by the key (Liger). slots: how many a head has. temperature: as for gla."""

    slot_defaults: ClassVar[dict[str, Any]] = GlaOptions.slot_defaults
    slots: int = 64
    temperature: float = 16.0

    def check(self, where: str) -> None:
        whole(self.slots, 1, f"{where}.slots")
        positive(self.temperature, f"{where}.temperature")

    @property
    def half_life(self) -> float:
        return float(self.temperature)

    def state_bytes(self, heads: int, dim: int, element: int) -> dict[str, int]:
        return {"fast weights": heads * 2 * self.slots * dim * WIDE_BYTES}


RULES |= {"hedgehog": HedgehogOptions, "gla": GlaOptions, "gsa": GsaOptions}
