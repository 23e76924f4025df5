"""The precision that states, gates and softmax sums are kept in."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """x in fp32, or as it is when it is wider: a bf16 state would stop moving under small updates."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
