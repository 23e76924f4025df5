"""Token-by-token loops of the linear memories and of their joins with attention; every other path is tested on them.

One row and one head: T tokens, d key and value width, f feature width. All loops carry gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def hedgehog(u: Tensor, weight: Tensor, kind: str = "softmax") -> Tensor:
    """Features [2 m] of one key or query [d]; weight [d, m] (Hedgehog, arXiv 2402.04347)."""
    z = u @ weight
    halves = []
    for side in (z, -z):
        raised = torch.exp(side - side.max())
        halves.append(raised / raised.sum() if kind == "softmax" else raised)
    return torch.cat(halves).clamp(min=1e-12)


def decayed_states(start: Tensor, keys: Tensor, values: Tensor, decay: Tensor) -> list[Tensor]:
    """The state [f, e] before any token and after each: S = decay S + k v^T. decay: [T, f], shares of the key axis."""
    states = [start]
    for t in range(len(keys)):
        states.append(decay[t][:, None] * states[-1] + torch.outer(keys[t], values[t]))
    return states


def slot_states(start: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, decay: Tensor) -> list[tuple]:
    """Gated slots (GSA, arXiv 2409.07146): each of m slots keeps a share decay[t] [m] and takes the rest of the token.

    start: keys and values of the slots, [m, d] each.
    """
    states = [start]
    for t in range(len(keys)):
        old_keys, old_values = states[-1]
        share, rest = decay[t][:, None], (1 - decay[t])[:, None]
        states.append((share * old_keys + rest * keys[t], share * old_values + rest * values[t]))
    return states


def slot_answer(state: tuple[Tensor, Tensor], q: Tensor, scale: float) -> Tensor:
    """Softmax of q [d] over the slots' keys, of their values."""
    return torch.softmax(state[0] @ q * scale, 0) @ state[1]


def window_sums(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: float) -> tuple[Tensor, Tensor]:
    """Values summed with exp(logit - highest logit), and the sum of these weights."""
    scores = torch.stack([(q * k).sum() * scale for k in keys])
    weights = torch.exp(scores - scores.max())
    return (weights[:, None] * torch.stack(list(values))).sum(0), weights.sum()


def shared_normaliser(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first_seen: Callable[[int], int],
    features: tuple[Tensor, Tensor],
    share: Tensor,
    rest: Tensor | float,
    scale: float,
) -> Tensor:
    """LoLCATs (arXiv 2410.10254) as a sum over all earlier tokens, no state: [T, d].

    q, k, v: [T, d] as attention uses them; features: of queries and keys, [T, f]; token t's softmax begins at
    first_seen(t), what lies before is linear.
    """
    outputs = []
    for t in range(len(q)):
        first = first_seen(t)
        summed, mass = window_sums(q[t], list(k[first : t + 1]), list(v[first : t + 1]), scale)
        summed, mass = share * summed, share * mass
        for j in range(first):
            weight = rest * (features[0][t] * features[1][j]).sum()
            summed, mass = summed + weight * v[j], mass + weight
        outputs.append(summed / mass)
    return torch.stack(outputs)
