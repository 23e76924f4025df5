"""What every memory rule offers. A rule is one file: its options, one class, and its place in the conformance suite."""

from __future__ import annotations

import inspect
import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..core import UserError
from ..ops.partials import Partial
from ..ops.wide import widen
from ..rules import RULES, RuleOptions
from .features import Features

Weights = dict[str, Tensor]


NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")  # of a rule, which stands in plans and on the command line
NO_TEXT = {"null", "true", "false", "yes", "no", "on", "off"}  # to YAML, of which plans are made


class RuleError(Exception):
    """A rule gave what a memory must not give; `rule` is its class."""

    def __init__(self, rule: type[Memory], text: str):
        super().__init__(text)
        self.rule = rule


class Memory(nn.Module):
    """The slow weights of one slot's rule and the four functions that make it a memory.

    `class Mine(Memory, rule="mine", options=MineOptions)` makes the rule known to plans, to the command line and to
    everything else (docs/new-memory.md). Made as rule(options, heads, dim, hidden, kv_heads), of which it may ignore
    what it does not need.
    Shapes: B rows, H state heads, Hkv KV heads, C tokens of one chunk, d key and value width, D model width.
    """

    rules: ClassVar[dict[str, type[Memory]]] = {}
    feature_map: ClassVar[type[nn.Module] | None] = Features  # of keys and queries; None: `write` gets them as they are
    streams: ClassVar[bool] = False  # whether it also takes one token at a time (`stream`)

    def __init_subclass__(
        cls, rule: str | None = None, options: type[RuleOptions] | None = None, **kwargs: Any
    ) -> None:
        super().__init_subclass__(**kwargs)
        if rule is None:
            return
        _check_name(rule)
        other = Memory.rules.get(rule, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UserError(f"rule {rule!r} is there already, in {other.__module__}; choose another name")
        if options is None and rule not in RULES:
            raise UserError(f"rule {rule!r} has no options; write class {cls.__name__}(Memory, rule=..., options=...)")
        _check_class(rule, cls, options or RULES[rule])
        Memory.rules[rule] = cls
        if options is not None:
            RULES[rule] = options

    def tokens(self, x: Tensor, k: Tensor | None = None) -> Weights:
        """What a token brings beside key and value, fp32: {name: [B, T, ...]}.

        x: [B, T, D] layer inputs; k: [B, T, Hkv, d] keys before RoPE.
        """
        return {}

    @abstractmethod
    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        """The state of a text of which nothing was written: {name: [B, H, n, m]}; `like` has the model's dtype."""
        raise NotImplementedError

    @abstractmethod
    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        """The state after a whole chunk. k, v: [B, H, C, d]; extra: {name: [B, C, ...]} from `tokens`, and
        "positions" [B or 1, C] in the text and "raw" [B, H, C, d], the keys without features."""
        raise NotImplementedError

    def readable(self, state: Weights) -> Weights:
        """What a reader needs of the state; computed once for all readers."""
        return state

    @staticmethod
    @abstractmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        """Answers [B, H, N, d] to queries [B, H, N, d]."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Put every slow weight at its documented start; a rule that has any says how."""


def _check_name(rule: Any) -> None:
    if not isinstance(rule, str) or not NAME.fullmatch(rule) or rule.lower() in NO_TEXT:
        allowed = f"a letter, then letters, digits, - _ or ., and none of {', '.join(sorted(NO_TEXT))}"
        raise UserError(f"rule name {rule!r} is not allowed; allowed: {allowed}")


def _check_class(rule: str, cls: type[Memory], options: Any) -> None:
    """Raise UserError for a rule without what every rule must have, or made in another way than all are."""
    if not (isinstance(options, type) and issubclass(options, RuleOptions)):
        raise UserError(f"rule {rule!r}: options is {options!r}; it must be a dataclass derived from RuleOptions")
    needed = [name for name in _left_open(cls) if name != "read" or not options.joint]  # attention itself reads these
    missing = [*needed, *(f"{name}, in its options" for name in _left_open(options))]
    missing += ["__init__"] if cls.__init__ is nn.Module.__init__ else []
    if missing:
        raise UserError(f"rule {rule!r} has no {', no '.join(missing)}; every rule needs its own")
    made = inspect.signature(cls.__init__)
    try:
        made.bind(None, options, 1, 1, 1, 1)
    except TypeError as error:
        line = inspect.unwrap(cls.__init__).__code__.co_firstlineno
        raise UserError(f"rule {rule!r}, line {line}: __init__{made} cannot be called as "
                        f"rule(options, heads, dim, hidden, kv_heads): {error}") from None  # fmt: skip


def _left_open(cls: type) -> list[str]:
    """The functions that a class leaves to those derived from it."""
    return [name for name in dir(cls) if getattr(getattr(cls, name, None), "__isabstractmethod__", False)]


def check_given(rule: type[Memory], where: str, found: Any, wanted: Mapping[str, Tensor] | tuple[int, ...]) -> None:
    """Raise RuleError unless `found` is {name: tensor}, shaped as those `wanted`, or all with so many rows, heads, ...

    where: the function of the rule that gave it.
    """
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise RuleError(rule, f"{where} gives no dictionary of tensors but {type(found).__name__}")
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    if isinstance(wanted, tuple):
        for name, shape in shapes.items():
            if shape[: len(wanted)] != wanted:
                raise RuleError(rule, f"{where} gives {name!r} of shape {shape}; it must begin with {wanted}")
    elif shapes != (known := {name: tuple(value.shape) for name, value in wanted.items()}):
        raise RuleError(rule, f"{where} gives {shapes}, the state before was {known}")


def check_read(rule: type[Memory], found: Any, wanted: tuple[int, ...], asked: torch.dtype | None = None) -> None:
    """Raise RuleError unless `found` is a Partial whose sum has a shape that begins with `wanted`.

    asked: dtype of the queries; answers to it are of that dtype or of float32, which is as wide as a state is.
    """
    if not isinstance(found, Partial) or not isinstance(found.summed, Tensor):
        raise RuleError(rule, f"read gives no Partial but {type(found).__name__}")
    if (shape := tuple(found.summed.shape))[: len(wanted)] != wanted:
        raise RuleError(rule, f"read gives answers of shape {shape}; it must begin with {wanted}")
    if asked is not None and found.summed.dtype not in (asked, torch.promote_types(asked, torch.float32)):
        given, said = (str(dtype).removeprefix("torch.") for dtype in (found.summed.dtype, asked))
        raise RuleError(rule, f"read gives answers of dtype {given} to queries of {said}; take the queries' own")


class StepSize(nn.Module):
    """Learned positive step sizes per token: softplus(W x + b), equal to `step` at the start; fp32."""

    def __init__(self, hidden: int, count: int, step: float):
        super().__init__()
        self.step = step
        self.weight = nn.Parameter(torch.zeros(count, hidden))
        self.bias = nn.Parameter(torch.empty(count))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, inverse_softplus(self.step))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, count] from x [B, T, D]."""
        return F.softplus(affine(x, self.weight, self.bias))


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear map in fp32 or wider: gates and step sizes keep their precision on a bf16 backbone."""
    return F.linear(widen(x), widen(weight), widen(bias))


def inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))
