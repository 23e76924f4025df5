"""SwiGLU fast weights that learn from each chunk by one step of gradient descent."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch import Tensor

from ..ops import swiglu
from ..ops.partials import Partial
from ..ops.wide import widen
from ..rules import SwigluOptions
from .base import Memory, StepSize, Weights, affine

NAMES = ("w0", "w1", "w2")
FORGET_BIAS = -6.0  # a share of 0.25 % a chunk at the start


class SwigluMemory(Memory, rule="swiglu-ttt"):
    """A SwiGLU network per state head, trained while reading (LaCT, arXiv 2505.23884; `docs/memory.md`).

    w0, w2: [H, h, d], w1: [H, d, h], the learned start of every text, rows of variance 1 / fan-in.
    """

    def __init__(self, options: SwigluOptions, heads: int, dim: int, hidden: int, kv_heads: int = 0):
        super().__init__()
        self.options, self.heads = options, heads
        width = options.width(dim)
        for name, rows, columns in (("w0", width, dim), ("w1", dim, width), ("w2", width, dim)):
            if options.rank and name != "w1":
                self.register_parameter(f"{name}_left", nn.Parameter(torch.empty(heads, rows, options.rank)))
                self.register_parameter(f"{name}_right", nn.Parameter(torch.empty(heads, options.rank, columns)))
            else:
                self.register_parameter(name, nn.Parameter(torch.empty(heads, rows, columns)))
        self.steps = StepSize(hidden, 3 * heads, options.step)
        for name in self._shares():
            self.register_parameter(f"{name}_weight", nn.Parameter(torch.zeros(heads, hidden)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(heads)))
        self.reset_parameters()

    def _shares(self) -> dict[str, float]:
        """The learned shares in (0, 1) that a token votes on, and their biases at the start."""
        options = self.options
        return ({"carry": 0.0} if options.momentum else {}) | ({"forget": FORGET_BIAS} if options.decay else {})

    def reset_parameters(self) -> None:
        for name, weight in self.named_parameters(recurse=False):
            if name.startswith("w"):
                spread = math.sqrt(weight.shape[-1])
                nn.init.normal_(weight, std=(0.5 if self.options.rank and name[:2] != "w1" else 1) / spread)
        self.steps.reset_parameters()
        for name, bias in self._shares().items():
            nn.init.zeros_(getattr(self, f"{name}_weight"))
            nn.init.constant_(getattr(self, f"{name}_bias"), bias)

    def first(self, name: str) -> Tensor:
        """The matrix `name` of a text of which nothing was written: [H, ...]."""
        if not self.options.rank or name == "w1":
            return getattr(self, name)
        left, right = getattr(self, f"{name}_left"), getattr(self, f"{name}_right")
        return left @ right + 0.5 * torch.eye(left.shape[1], right.shape[2], dtype=left.dtype, device=left.device)

    def tokens(self, x: Tensor, k: Tensor | None = None) -> Weights:
        extra = {"steps": self.steps(x)}
        for name in self._shares():
            weight, bias = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
            extra[name] = torch.sigmoid(affine(x, weight, bias))
        return extra

    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        state = {name: widen(self.first(name)).expand(rows, -1, -1, -1) for name in NAMES}
        if self.options.momentum:
            state |= {f"momentum.{name}": torch.zeros_like(state[name]) for name in NAMES}
        if self.options.group > 1:
            state |= {f"group.{name}": state[name] for name in NAMES}
            state["phase"] = state["w0"].new_zeros(rows, self.heads, 1, 1)
        return state

    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        steps = extra["steps"].transpose(1, 2).unflatten(1, (3, self.heads)).unsqueeze(-1)
        begun, written = self._group(state)
        now = self._weights(begun)
        updates = swiglu.descent(now, k, v, (steps[:, 0], steps[:, 1], steps[:, 2]), self.options.loss)
        for name, update in zip(NAMES, updates, strict=True):
            if self.options.momentum:
                carry = extra["carry"].mean(1)[..., None, None]
                update = update + carry * state[f"momentum.{name}"]
                written[f"momentum.{name}"] = update
            if self.options.muon:
                update = self.options.muon_step * swiglu.orthogonalise(update)
            update = swiglu.limit_norm(update, self.first(name), self.options.limit)
            old = state[name]
            if self.options.decay:
                old = old * (1 - extra["forget"].mean(1)[..., None, None])
            written[name] = self._normalise(name, old + update, "post")
        return written

    def _group(self, state: Weights) -> tuple[Weights, Weights]:
        """The weights at which the gradient is taken, and what the state carries about the group after this chunk.

        "phase" counts the chunks of the group so far, by itself, since the rows of a batch may differ in it.
        """
        if self.options.group == 1:
            return state, {}
        first = state["phase"] == 0
        begun = {name: torch.where(first, state[name], state[f"group.{name}"]) for name in NAMES}
        carried = {f"group.{name}": value for name, value in begun.items()}
        return begun, carried | {"phase": (state["phase"] + 1) % self.options.group}

    def _normalise(self, name: str, weight: Tensor, when: str) -> Tensor:
        """Rows at the lengths they had at the start, if the option says so at this moment."""
        if self.options.row_norm != when:
            return weight
        return swiglu.scale_rows(weight, self.first(name).norm(dim=-1, keepdim=True))

    def _weights(self, state: Weights) -> swiglu.Weights:
        return swiglu.Weights(*(self._normalise(name, state[name], "pre") for name in NAMES))

    def readable(self, state: Weights) -> Weights:
        return self._weights(state)._asdict()

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        return Partial(swiglu.apply(swiglu.Weights(**readable), q))
