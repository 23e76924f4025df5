"""Choose the next token from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import UserError


class Sampler:
    """Greedy at temperature 0, else nucleus sampling from an own generator: the seed alone decides the draw."""

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0) -> None:
        self.temperature, self.top_p = temperature, top_p
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Tensor) -> Tensor:
        """logits [B, V] -> token ids [B]. Raises UserError when a logit is not a number."""
        if torch.isnan(logits).any():
            raise UserError("the model's logits are not numbers (NaN); its weights are damaged")
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = nucleus(torch.softmax(logits.float().cpu() / self.temperature, -1), self.top_p)
        return torch.multinomial(probabilities, 1, generator=self.generator)[:, 0].to(logits.device)


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches `top_p`; at least one. [B, V] -> [B, V]."""
    if top_p >= 1:
        return probabilities
    ordered, order = probabilities.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p, ordered, torch.zeros_like(ordered))
    return torch.zeros_like(probabilities).scatter(-1, order, kept)
