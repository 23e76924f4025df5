"""SwiGLU fast weights that learn from each chunk by one step of gradient descent."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch import Tensor

from ..ops import swiglu
from ..rules import SwigluOptions
from .base import Memory, StepSize, Weights, affine

NAMES = ("w0", "w1", "w2")


class SwigluMemory(Memory, rule="swiglu-ttt"):
    """A SwiGLU network per state head, trained while reading (LaCT, arXiv 2505.23884; `docs/memory.md`).

    w0, w2: [H, h, d], w1: [H, d, h], the learned start of every text, rows of variance 1 / fan-in.
    """

    def __init__(self, options: SwigluOptions, heads: int, dim: int, hidden: int):
        super().__init__()
        self.options, self.heads = options, heads
        width = options.width(dim)
        self.w0 = nn.Parameter(torch.empty(heads, width, dim))
        self.w1 = nn.Parameter(torch.empty(heads, dim, width))
        self.w2 = nn.Parameter(torch.empty(heads, width, dim))
        self.steps = StepSize(hidden, 3 * heads, options.step)
        if options.momentum:
            self.carry_weight = nn.Parameter(torch.zeros(heads, hidden))
            self.carry_bias = nn.Parameter(torch.zeros(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in NAMES:
            weight = getattr(self, name)
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))
        self.steps.reset_parameters()
        if self.options.momentum:
            nn.init.zeros_(self.carry_weight)
            nn.init.zeros_(self.carry_bias)

    def tokens(self, x: Tensor) -> Weights:
        extra = {"steps": self.steps(x)}
        if self.options.momentum:
            extra["carry"] = torch.sigmoid(affine(x, self.carry_weight, self.carry_bias))
        return extra

    def start(self, rows: int) -> Weights:
        state = {name: getattr(self, name).expand(rows, -1, -1, -1) for name in NAMES}
        if self.options.momentum:
            state |= {f"momentum.{name}": torch.zeros_like(state[name]) for name in NAMES}
        return state

    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        steps = extra["steps"].transpose(1, 2).unflatten(1, (3, self.heads)).unsqueeze(-1)
        now = self._weights(state)
        updates = swiglu.descent(now, k, v, (steps[:, 0], steps[:, 1], steps[:, 2]), self.options.loss)
        written: Weights = {}
        for name, update in zip(NAMES, updates, strict=True):
            if self.options.momentum:
                carry = extra["carry"].mean(1)[..., None, None]
                update = update + carry * state[f"momentum.{name}"]
                written[f"momentum.{name}"] = update
            if self.options.muon:
                update = self.options.muon_step * swiglu.orthogonalise(update)
            update = swiglu.limit_norm(update, getattr(self, name), self.options.limit)
            written[name] = self._normalise(name, state[name] + update, "post")
        return written

    def _normalise(self, name: str, weight: Tensor, when: str) -> Tensor:
        """Rows at the lengths they had at the start, if the option says so at this moment."""
        if self.options.row_norm != when:
            return weight
        return swiglu.scale_rows(weight, getattr(self, name).norm(dim=-1, keepdim=True))

    def _weights(self, state: Weights) -> swiglu.Weights:
        return swiglu.Weights(*(self._normalise(name, state[name], "pre") for name in NAMES))

    def readable(self, state: Weights) -> Weights:
        return self._weights(state)._asdict()

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Tensor:
        return swiglu.apply(swiglu.Weights(**readable), q)
