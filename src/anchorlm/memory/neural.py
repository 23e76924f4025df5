"""A neural memory: an MLP per state head that learns from each chunk, with momentum and forgetting."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch import Tensor

from ..ops import mlp
from ..ops.partials import Partial
from ..ops.swiglu import limit_norm
from ..rules import NeuralOptions
from .base import Weights
from .trained import TrainedMemory


class NeuralMemory(TrainedMemory, rule="nmm"):
    """M(u) = W_{n-1} gelu(... gelu(W_0 u)), taught by |M(k) - v|^2 over a chunk (Titan-Llama, arXiv 2610.19210).

    w0 .. w{n-1}: [H, rows, columns], the learned start of every text, rows of variance 1 / fan-in. Each gradient is cut
    to `limit` before it enters the momentum, so that both recurrences stay linear in the gradients.
    """

    options: NeuralOptions

    def __init__(self, options: NeuralOptions, heads: int, dim: int, hidden: int, kv_heads: int = 0):
        super().__init__(options, heads, hidden)
        sizes = options.sizes(dim)
        self.names = tuple(f"w{i}" for i in range(len(sizes)))
        for name, size in zip(self.names, sizes, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(heads, *size)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in self.names:
            weight = getattr(self, name)
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))
        super().reset_parameters()

    def descent(self, weights: Weights, k: Tensor, v: Tensor, steps: Tensor) -> Weights:
        found = mlp.descent(tuple(weights.values()), k, v, steps[:, 0])
        return {
            name: limit_norm(update, self.first(name), self.options.limit)
            for name, update in zip(weights, found, strict=True)
        }

    @staticmethod
    def read(readable: Weights, q: Tensor) -> Partial:
        return Partial(mlp.apply(tuple(readable.values()), q))
