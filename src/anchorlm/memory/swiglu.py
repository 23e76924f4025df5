"""SwiGLU fast weights that learn from each chunk by one step of gradient descent."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch import Tensor

from ..ops import swiglu
from ..ops.partials import Partial
from ..rules import SwigluOptions
from .base import Weights
from .trained import TrainedMemory


class SwigluMemory(TrainedMemory, rule="swiglu-ttt"):
    """A SwiGLU network per state head, trained while reading (LaCT, arXiv 2505.23884; `docs/memory.md`).

    w0, w2: [H, h, d], w1: [H, d, h], the learned start of every text, rows of variance 1 / fan-in.
    """

    names = ("w0", "w1", "w2")
    options: SwigluOptions

    def __init__(self, options: SwigluOptions, heads: int, dim: int, hidden: int, kv_heads: int = 0):
        super().__init__(options, heads, hidden)
        width = options.width(dim)
        for name, rows, columns in (("w0", width, dim), ("w1", dim, width), ("w2", width, dim)):
            if options.rank and name != "w1":
                self.register_parameter(f"{name}_left", nn.Parameter(torch.empty(heads, rows, options.rank)))
                self.register_parameter(f"{name}_right", nn.Parameter(torch.empty(heads, options.rank, columns)))
            else:
                self.register_parameter(name, nn.Parameter(torch.empty(heads, rows, columns)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name, weight in self.named_parameters(recurse=False):
            if name.startswith("w"):
                spread = math.sqrt(weight.shape[-1])
                nn.init.normal_(weight, std=(0.5 if self.options.rank and name[:2] != "w1" else 1) / spread)
        super().reset_parameters()

    def first(self, name: str) -> Tensor:
        if not self.options.rank or name == "w1":
            return getattr(self, name)
        left, right = getattr(self, f"{name}_left"), getattr(self, f"{name}_right")
        return left @ right + 0.5 * torch.eye(left.shape[1], right.shape[2], dtype=left.dtype, device=left.device)

    def descent(self, weights: Weights, k: Tensor, v: Tensor, steps: Tensor) -> Weights:
        own = (steps[:, 0], steps[:, 1], steps[:, 2])
        return swiglu.descent(swiglu.Weights(**weights), k, v, own, self.options.loss)._asdict()

    def shaped(self, name: str, update: Tensor) -> Tensor:
        if self.options.muon:
            update = self.options.muon_step * swiglu.orthogonalise(update)
        return swiglu.limit_norm(update, self.first(name), self.options.limit)

    def settled(self, name: str, weight: Tensor) -> Tensor:
        return self._normalise(name, weight, "post")

    def weights(self, state: Weights) -> Weights:
        return {name: self._normalise(name, state[name], "pre") for name in self.names}

    def _normalise(self, name: str, weight: Tensor, when: str) -> Tensor:
        """Rows at the lengths they had at the start, if the option says so at this moment."""
        if self.options.row_norm != when:
            return weight
        return swiglu.scale_rows(weight, self.first(name).norm(dim=-1, keepdim=True))

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        return Partial(swiglu.apply(swiglu.Weights(**readable), q))
