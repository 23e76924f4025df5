"""An MLP with GELU between its layers as fast weights, and its hand-written inner gradient.

Shapes: B rows, H state heads, N tokens, d key and value width. Each weight: [B, H, rows, columns], the first takes
keys of width d, the last gives values of width d; keys, values: [B, H, N, d]; step sizes: [B, H, N, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def apply(weights: Sequence[Tensor], u: Tensor) -> Tensor:
    """M(u): [B, H, N, d]."""
    for layer, weight in enumerate(weights):
        u = (F.gelu(u) if layer else u) @ weight.transpose(-1, -2)
    return u


def descent(weights: Sequence[Tensor], k: Tensor, v: Tensor, steps: Tensor) -> list[Tensor]:
    """Minus the gradient of sum_t |M(k_t) - v_t|^2 / 2 for each weight, token t with its own step size.

    The published loss has no half: a step size here is twice one there (Titan-Llama, arXiv 2610.19210).
    """
    inputs, raw = [k], []
    for weight in weights[:-1]:
        raw.append(inputs[-1] @ weight.transpose(-1, -2))
        inputs.append(F.gelu(raw[-1]))
    error = v - inputs[-1] @ weights[-1].transpose(-1, -2)
    updates = []
    for layer in reversed(range(len(weights))):
        updates.append((error * steps).transpose(-1, -2) @ inputs[layer])
        if layer:
            error = (error @ weights[layer]) * _slope(raw[layer - 1])
    return updates[::-1]


def _slope(z: Tensor) -> Tensor:
    """The derivative of z Phi(z), Phi the normal distribution."""
    return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
