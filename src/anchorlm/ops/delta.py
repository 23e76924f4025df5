"""The delta rule over a whole chunk at once, exactly equal to the token loop (UT transform, arXiv 2406.06484)."""

from __future__ import annotations

import torch
from torch import Tensor


def delta_chunk(state: Tensor, k: Tensor, v: Tensor, step: Tensor) -> Tensor:
    """The state after a chunk. state: [B, H, d, d] values by keys; k, v: [B, H, C, d]; step: [B, H, C, 1]."""
    weighted = k * step
    lower = torch.tril(weighted @ k.transpose(-1, -2), -1)
    target = step * (v - k @ state.transpose(-1, -2))
    unit = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device) + lower
    corrections = torch.linalg.solve_triangular(unit, target, upper=False, unitriangular=True)
    return state + corrections.transpose(-1, -2) @ k
