"""The two simplest memories: a matrix of outer products, and the same matrix under the delta rule."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.delta import delta_chunk
from ..ops.partials import Partial
from ..ops.wide import widen
from ..rules import LinearOptions
from .base import Memory, StepSize, Weights


class LinearMemory(Memory, rule="linear"):
    """S [H, d, d] (values by keys) grows by step * v k^T: linear attention (arXiv 2006.16236) over whole chunks."""

    def __init__(self, options: LinearOptions, heads: int, dim: int, hidden: int, kv_heads: int = 0):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.steps = StepSize(hidden, heads, options.step)

    def reset_parameters(self) -> None:
        self.steps.reset_parameters()

    def tokens(self, x: Tensor, k: Tensor | None = None) -> Weights:
        return {"steps": self.steps(x)}

    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        return {"s": widen(self.steps.bias).new_zeros(rows, self.heads, self.dim, self.dim)}

    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        return {"s": state["s"] + (v * self._step(extra)).transpose(-1, -2) @ k}

    @staticmethod
    def _step(extra: Weights) -> Tensor:
        """[B, H, C, 1] from [B, C, H]."""
        return extra["steps"].transpose(1, 2).unsqueeze(-1)

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        return Partial(q @ readable["s"].transpose(-1, -2))


class DeltaMemory(LinearMemory, rule="delta"):
    """S under the delta rule (arXiv 2102.11174), the step kept below 1 so that an answer is never overshot."""

    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        return {"s": delta_chunk(state["s"], k, v, torch.clamp(self._step(extra), max=1.0))}
