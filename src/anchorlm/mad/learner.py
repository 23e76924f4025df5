"""A small model of one plan, and the decoder of a task that is read off one token's state.

Shapes: B rows, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from ..convert.attach import convert
from ..core import seed_all
from ..data.mad import Task
from ..plan import Plan
from .table import Sizes


class Decoder(nn.Module):
    """All tokens of a row from one state and their places, by an MLP that does not widen (arXiv 2403.17844)."""

    def __init__(self, width: int, length: int, vocab: int):
        super().__init__()
        self.register_buffer("places", sines(length, width), persistent=False)
        hidden = [nn.RMSNorm(width), nn.Linear(width, width), nn.GELU()]
        again = [nn.RMSNorm(width), nn.Linear(width, width), nn.GELU()]
        self.layers = nn.Sequential(*hidden, *again, nn.RMSNorm(width), nn.Linear(width, vocab))

    def forward(self, state: Tensor) -> Tensor:
        """[B, T, V] from the last token's state [B, D]."""
        return self.layers(state[:, None] + self.places)


def sines(length: int, width: int) -> Tensor:
    """Sinusoidal places [length, width] (arXiv 1706.03762); width is even."""
    rates = 10_000.0 ** -torch.linspace(0, 1, width // 2)
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class Learner(nn.Module):
    """A hybrid and, where the task is pooled, the decoder behind its last token."""

    def __init__(self, model: nn.Module, decoder: Decoder | None = None):
        super().__init__()
        self.model, self.decoder = model, decoder

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T, V] from ids [B, T]: at each position what the task asks for there."""
        hidden = self.model.hidden(ids)
        return self.model.get_output_embeddings()(hidden) if self.decoder is None else self.decoder(hidden[:, -1])


def build(task: Task, sizes: Sizes, plan: Plan, seed: int, device: str = "cpu") -> Learner:
    """Random weights of this seed: the same backbone for every plan."""
    seed_all(seed)
    model = convert(LlamaForCausalLM(sizes.config(task.vocab, task.length + 1)), plan)
    seed_all(seed)
    decoder = Decoder(sizes.hidden, task.length, task.vocab) if task.pooled else None
    return Learner(model, decoder).to(device).train()
