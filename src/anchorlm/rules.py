"""The memory rules' options, as data: what a plan may set, with the measured defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .core import UserError, suggest


def _positive(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise UserError(f"{where} is {value!r}; it must be a positive number")


@dataclass(frozen=True)
class RuleOptions:
    """Options that every rule has."""

    step: float = 1.0

    def check(self, where: str) -> None:
        _positive(self.step, f"{where}.step")

    def state_elements(self, heads: int, dim: int) -> dict[str, int]:
        """Numbers kept per sequence, by part, for `heads` state heads of key and value width `dim`."""
        raise NotImplementedError

    def token_elements(self, heads: int) -> int:
        """fp32 numbers kept per buffered token beside its key and value (step sizes, momentum)."""
        return heads

    def key_length(self, dim: int) -> float:
        """Euclidean length of the normalised keys and queries."""
        return 1.0


@dataclass(frozen=True)
class SwigluOptions(RuleOptions):
    """SwiGLU fast weights trained at test time (LaCT, arXiv 2505.23884; Anchor, arXiv 2611.04327).

    step: initial inner step size per token; training calibrates it to the text first.
    loss: inner loss, "dot" or "squared".
    ratio: hidden width over head width.
    key_scale: length of the normalised keys and queries over the square root of the head width. At 1 the hidden units
        see inputs of unit variance; at length 1 (LaCT) they see almost none and learn slowly without Muon.
    limit: no update of a matrix is longer than this share of the matrix at the start, so that a run of alike tokens
        cannot blow the state up.
    rank: 0 for free starting matrices, else w0 and w2 start as a product of this rank plus half the identity.
    decay: forget a learned share of the state at every chunk, 0.25 % at the start (Titans, arXiv 2501.00663).
    momentum: carry the previous chunk's update.
    muon: orthogonalise the update; muon_step scales it.
    row_norm: "none", "post" (renormalise the rows after each update) or "pre" (carry the unnormalised sum).
    """

    step: float = 0.002
    loss: str = "squared"
    ratio: float = 1.0
    key_scale: float = 1.0
    limit: float = 0.5
    rank: int = 0
    decay: bool = False
    momentum: bool = False
    muon: bool = False
    muon_step: float = 0.2
    row_norm: str = "none"

    def check(self, where: str) -> None:
        super().check(where)
        _positive(self.ratio, f"{where}.ratio")
        _positive(self.muon_step, f"{where}.muon_step")
        _positive(self.key_scale, f"{where}.key_scale")
        _positive(self.limit, f"{where}.limit")
        for name, allowed in (("loss", ("dot", "squared")), ("row_norm", ("none", "post", "pre"))):
            if getattr(self, name) not in allowed:
                raise UserError(f"{where}.{name} is {getattr(self, name)!r}; {suggest(getattr(self, name), allowed)}")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 0:
            raise UserError(f"{where}.rank is {self.rank!r}; it must be a whole number of at least 0")
        for name in ("momentum", "muon", "decay"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{where}.{name} is {getattr(self, name)!r}; it must be true or false")

    def width(self, dim: int) -> int:
        return max(1, round(self.ratio * dim))

    def state_elements(self, heads: int, dim: int) -> dict[str, int]:
        weights = 3 * heads * dim * self.width(dim)
        return {"fast weights": weights} | ({"momentum": weights} if self.momentum else {})

    def key_length(self, dim: int) -> float:
        return self.key_scale * math.sqrt(dim)

    def token_elements(self, heads: int) -> int:
        return heads * (3 + self.momentum + self.decay)


@dataclass(frozen=True)
class LinearOptions(RuleOptions):
    """A sum of outer products of values and keys: linear attention over the completed chunks."""

    def state_elements(self, heads: int, dim: int) -> dict[str, int]:
        return {"fast weights": heads * dim * dim}


@dataclass(frozen=True)
class DeltaOptions(LinearOptions):
    """The delta rule: each token first takes back what the state already answers to its key."""

    step: float = 0.5

    def check(self, where: str) -> None:
        super().check(where)
        if self.step > 1:
            raise UserError(f"{where}.step is {self.step!r}; the delta rule takes a step of at most 1")


RULES: dict[str, type[RuleOptions]] = {"swiglu-ttt": SwigluOptions, "linear": LinearOptions, "delta": DeltaOptions}
