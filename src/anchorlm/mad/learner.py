"""A small model of one plan, and the decoder of a task that is read off one token's state.

Shapes: B rows, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
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


class Taps(nn.Module):
    """A causal convolution of each channel over tokens, the identity at the start.

    It gives every token its predecessors, which attention needs a layer and thousands of steps to learn to fetch.
    """

    def __init__(self, taps: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, width))
        nn.init.ones_(self.weight[0])

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] from [B, T, D]."""
        shifted = [F.pad(x, (0, 0, back, 0))[:, : x.shape[1]] for back in range(len(self.weight))]
        return (torch.stack(shifted, -1) * self.weight.T).sum(-1)


class Learner(nn.Module):
    """A hybrid, what mixes its embeddings, and, where the task is pooled, the decoder behind its last token."""

    def __init__(self, model: nn.Module, decoder: Decoder | None = None, taps: Taps | None = None):
        super().__init__()
        self.model, self.decoder, self.taps = model, decoder, taps

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T, V] from ids [B, T]: at each position what the task asks for there."""
        if self.taps is None:
            hidden = self.model.hidden(ids)
        else:
            hidden = self.model.hidden(inputs_embeds=self.taps(self.model.get_input_embeddings()(ids)))
        return self.model.get_output_embeddings()(hidden) if self.decoder is None else self.decoder(hidden[:, -1])


def build(task: Task, sizes: Sizes, plan: Plan, seed: int, device: str = "cpu") -> Learner:
    """Random weights of this seed: the same backbone for every plan."""
    seed_all(seed)
    model = convert(LlamaForCausalLM(sizes.config(task.vocab, task.length + 1)), plan)
    seed_all(seed)
    decoder = Decoder(sizes.hidden, task.length, task.vocab) if task.pooled else None
    taps = Taps(sizes.taps, sizes.hidden) if sizes.taps > 1 else None
    return Learner(model, decoder, taps).to(device).train()
