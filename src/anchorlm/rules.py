"""The memory rules' options, as data: what a plan may set, with the measured defaults."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar

from .core import LARGEST, UserError, not_whole, suggest


def positive(value: Any, where: str) -> None:
    if not _is_number(value) or value <= 0:
        raise UserError(f"{where} is {value!r}; it must be a positive number of at most {LARGEST:,}")


def not_negative(value: Any, where: str) -> None:
    if not _is_number(value) or value < 0:
        raise UserError(f"{where} is {value!r}; it must be a finite number of at least 0 and at most {LARGEST:,}")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and value <= LARGEST


def whole(value: Any, least: int, where: str) -> None:
    if needed := not_whole(value, least):
        raise UserError(f"{where} is {value!r}; it must be {needed}")


def truth(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise UserError(f"{where} is {value!r}; it must be true or false")


def one_of(value: Any, allowed: tuple[str, ...], where: str) -> None:
    if value not in allowed:
        raise UserError(f"{where} is {value!r}; {suggest(str(value), allowed)}")


def mapping(values: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(values, Mapping):
        raise UserError(f"{where} is {values!r}; it must be a mapping")
    return values


def strict(cls: type, values: Any, where: str) -> dict[str, Any]:
    """The mapping as keyword arguments of a dataclass; an unknown key is an error that suggests a known one."""
    allowed = {f.name for f in fields(cls)}
    for key in mapping(values, where):
        if key not in allowed:
            raise UserError(f"{where} has an unknown key {key!r}; {suggest(str(key), allowed)}")
    return dict(values)


def number_range(text: str) -> range | None:
    """The numbers of `7` or `18-20`; empty where the first is above the last, None for any other text."""
    found = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", text)
    return range(int(found[1]), int(found[2] or found[1]) + 1) if found else None


WIDE_BYTES = 4  # fast weights, momentum, step sizes and scores are fp32


@dataclass(frozen=True)
class RuleOptions:
    """What every rule answers about itself.

    slot_defaults: fields of a slot that this rule needs otherwise than most. fixed: fields that have one value alone.
    mixes, lags: what a slot's `mix` and `lag` may be; "chunk" stands for every whole number.
    joint: its readers add keys to the softmax of their own attention.
    """

    slot_defaults: ClassVar[dict[str, Any]] = {}
    fixed: ClassVar[dict[str, Any]] = {}
    mixes: ClassVar[tuple[str, ...]] = ("add", "sum", "convex", "residual")
    lags: ClassVar[tuple[str, ...]] = ("chunk", "segment")
    joint: ClassVar[bool] = False

    def check(self, where: str) -> None:
        """Raise UserError for a value out of range; `where` names the options in the message."""

    def check_lag(self, where: str, lag: int | str) -> None:
        """Raise UserError for options that cannot work with a slot's lag."""

    @property
    def half_life(self) -> float | None:
        """Tokens in which half of the memory is forgotten before any training; None for a rule that does not fade."""
        return None

    def check_window(self, where: str, window: int, delay: int, positions: int | None) -> None:
        """Raise UserError for a value that does not fit a reader's window of a model with so many positions.

        delay: tokens that may wait before they are written.
        """

    @abstractmethod
    def state_bytes(self, heads: int, dim: int, element: int) -> dict[str, int]:
        """Bytes kept per sequence, by part, for `heads` state heads of width `dim` on a model of `element` bytes."""
        raise NotImplementedError

    def token_elements(self, heads: int) -> int:
        """fp32 numbers kept per buffered token beside its key and value: what the rule's `tokens` gives."""
        return 0

    def key_length(self, dim: int) -> float:
        """Euclidean length of the normalised keys and queries."""
        return 1.0


@dataclass(frozen=True)
class FastWeightOptions(RuleOptions):
    """Options of rules that sum up what they write. step: initial inner step size per token."""

    step: float = 1.0

    def check(self, where: str) -> None:
        positive(self.step, f"{where}.step")

    @abstractmethod
    def state_elements(self, heads: int, dim: int) -> dict[str, int]:
        """fp32 numbers kept per sequence, by part."""
        raise NotImplementedError

    def state_bytes(self, heads: int, dim: int, element: int) -> dict[str, int]:
        return {part: count * WIDE_BYTES for part, count in self.state_elements(heads, dim).items()}

    def token_elements(self, heads: int) -> int:
        return heads


@dataclass(frozen=True)
class TrainedOptions(FastWeightOptions):
    """What fast weights have in common that learn by one step of gradient descent a chunk.

    step: initial inner step size per token; training calibrates it to the text first.
    key_scale: length of the normalised keys and queries over the square root of the head width. At 1 the hidden units
        see inputs of unit variance; at length 1 (LaCT) they see almost none and learn slowly without Muon.
    limit: no change of a matrix is longer than this share of the matrix at the start, so that a run of alike tokens
        cannot blow the state up.
    decay: forget a learned share of the state at every chunk, 0.25 % at the start (Titans, arXiv 2501.00663).
    momentum: carry the previous chunk's update.
    group: chunks whose gradients are taken at the weights that held when the group began (Titans' offline batching);
        1 is the online rule. Above 1 the state also carries those weights.
    """

    steps: ClassVar[int] = 1  # step sizes a token
    step: float = 0.002
    key_scale: float = 1.0
    limit: float = 0.5
    decay: bool = False
    momentum: bool = False
    group: int = 1

    def check(self, where: str) -> None:
        super().check(where)
        positive(self.key_scale, f"{where}.key_scale")
        positive(self.limit, f"{where}.limit")
        whole(self.group, 1, f"{where}.group")
        for name in ("decay", "momentum"):
            truth(getattr(self, name), f"{where}.{name}")

    def weights(self, dim: int) -> int:
        """fp32 numbers in the fast weights of one head."""
        raise NotImplementedError

    def state_elements(self, heads: int, dim: int) -> dict[str, int]:
        weights = heads * self.weights(dim)
        held = weights if self.group == 1 else 2 * weights + heads
        return {"fast weights": held} | ({"momentum": weights} if self.momentum else {})

    def key_length(self, dim: int) -> float:
        return self.key_scale * math.sqrt(dim)

    def token_elements(self, heads: int) -> int:
        return heads * (self.steps + self.momentum + self.decay)


@dataclass(frozen=True)
class SwigluOptions(TrainedOptions):
    """SwiGLU fast weights trained at test time (LaCT, arXiv 2505.23884; Anchor, arXiv 2611.04327).

    loss: inner loss, "dot" or "squared".
    ratio: hidden width over head width.
    rank: 0 for free starting matrices, else w0 and w2 start as a product of this rank plus half the identity.
    muon: orthogonalise the update; muon_step scales it.
    row_norm: "none", "post" (renormalise the rows after each update) or "pre" (carry the unnormalised sum).
    """

    steps: ClassVar[int] = 3
    step: float = 0.001
    limit: float = 0.22  # at 0.5, chunks step over their minimum and back, and gradients through many of them explode
    loss: str = "squared"
    ratio: float = 1.0
    rank: int = 0
    muon: bool = False
    muon_step: float = 0.2
    row_norm: str = "none"

    def check(self, where: str) -> None:
        super().check(where)
        positive(self.ratio, f"{where}.ratio")
        positive(self.muon_step, f"{where}.muon_step")
        one_of(self.loss, ("dot", "squared"), f"{where}.loss")
        one_of(self.row_norm, ("none", "post", "pre"), f"{where}.row_norm")
        whole(self.rank, 0, f"{where}.rank")
        truth(self.muon, f"{where}.muon")

    def width(self, dim: int) -> int:
        return max(1, round(self.ratio * dim))

    def weights(self, dim: int) -> int:
        return 3 * dim * self.width(dim)


@dataclass(frozen=True)
class NeuralOptions(TrainedOptions):
    """A neural memory: an MLP with GELU between its layers, trained at test time (Titan-Llama, arXiv 2610.19210).

    depth: layers of weights. width: hidden width. Momentum and forgetting are on, as published.
    """

    slot_defaults: ClassVar[dict[str, Any]] = {
        "heads": "kv", "mix": {"kind": "convex", "gate": "query"}, "map": {"kind": "none"}, "norm": False,
    }  # fmt: skip
    depth: int = 3
    width: int = 64
    decay: bool = True
    momentum: bool = True

    def check(self, where: str) -> None:
        super().check(where)
        whole(self.depth, 1, f"{where}.depth")
        whole(self.width, 1, f"{where}.width")

    def sizes(self, dim: int) -> list[tuple[int, int]]:
        """Rows and columns of each matrix, the first to act first."""
        widths = [dim, *[self.width] * (self.depth - 1), dim]
        return [(after, before) for before, after in pairwise(widths)]

    def weights(self, dim: int) -> int:
        return sum(rows * columns for rows, columns in self.sizes(dim))


@dataclass(frozen=True)
class LinearOptions(FastWeightOptions):
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


@dataclass(frozen=True)
class KeptOptions(RuleOptions):
    """Exact keys and values of a few past tokens, the best by a score that each token gets when it is read.

    tokens: how many are kept for each KV head.
    choose: "gate", a small network that predicts the highest attention any later query will give the token; "recent";
        "key-norm", which keeps the shortest keys (arXiv 2406.11430); "decay", a gate whose score fades with age
        (TRIM-KV, arXiv 2512.03324).
    width: hidden width of the gate.
    follow: a token right behind one with score s has a score of at least s - follow, so that what is copied is kept to
        its end and one token more; null leaves every token its own score. For "gate", whose scores are logarithms.
    positions: "compact" reads the kept tokens in order right behind the window, so that no distance is longer than
        the model has seen; "true" leaves them where they were.
    """

    slot_defaults: ClassVar[dict[str, Any]] = {
        "heads": "kv", "mix": "joint", "map": {"kind": "none"}, "norm": False, "chunk": 64,
    }  # fmt: skip
    fixed: ClassVar[dict[str, Any]] = {"rope": "none", "act": "identity", "norm": False, "conv": 0, "silent": True}
    mixes: ClassVar[tuple[str, ...]] = ("joint",)
    lags: ClassVar[tuple[str, ...]] = ("chunk",)
    joint: ClassVar[bool] = True
    tokens: int = 128
    choose: str = "gate"
    width: int = 128
    follow: float | None = None
    positions: str = "compact"

    def __post_init__(self) -> None:
        if self.positions is True:  # YAML reads the bare word as a boolean
            object.__setattr__(self, "positions", "true")

    def check(self, where: str) -> None:
        whole(self.tokens, 1, f"{where}.tokens")
        whole(self.width, 1, f"{where}.width")
        one_of(self.choose, ("gate", "recent", "key-norm", "decay"), f"{where}.choose")
        one_of(self.positions, ("compact", "true"), f"{where}.positions")
        if self.follow is not None:
            not_negative(self.follow, f"{where}.follow")
            if self.choose != "gate":
                raise UserError(f"{where}.follow is {self.follow:g}; it is for choose 'gate', not {self.choose!r}")

    def check_window(self, where: str, window: int, delay: int, positions: int | None) -> None:
        if positions and self.tokens + window > positions:
            most = f"with window {window} at most {positions - window} fit the {positions} positions of the model"
            raise UserError(f"{where}.tokens is {self.tokens}; {most}")
        if self.choose == "recent" and self.tokens + delay < window:
            least = f"within the window of {window} nothing recent is left to read; take at least {window - delay}"
            raise UserError(f"{where}.tokens is {self.tokens}; {least}")

    def state_bytes(self, heads: int, dim: int, element: int) -> dict[str, int]:
        """A key, a value, an fp32 score and a 4-byte position for each token; with `follow` the newest one's score."""
        newest = 0 if self.follow is None else heads * WIDE_BYTES
        return {"kept tokens": self.tokens * heads * (2 * dim * element + WIDE_BYTES + 4) + newest}

    def token_elements(self, heads: int) -> int:
        return heads


def known_rule(rule: Any, where: str) -> type[RuleOptions]:
    """The options of a rule. Raises UserError where no such rule is known."""
    if rule not in RULES:
        raise UserError(f"{where} is {rule!r}; one of your own needs --rules FILE; {suggest(str(rule), RULES)}")
    return RULES[rule]


RULES: dict[str, type[RuleOptions]] = {
    "swiglu-ttt": SwigluOptions,
    "nmm": NeuralOptions,
    "linear": LinearOptions,
    "delta": DeltaOptions,
    "kept": KeptOptions,
}
