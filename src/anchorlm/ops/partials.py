"""Attention over some of the keys, and the join of two such parts under one normaliser (online softmax)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .wide import widen


class Partial(NamedTuple):
    """Attention over some of the keys: its answer [B, Hq, N, d], and the logarithm of the sum of exp(logit) over these
    keys [B, Hq, N, 1], in fp32 or wider; None where no other key can be seen, so that nothing is to be joined."""

    answer: Tensor
    mass: Tensor | None = None


def join(a: Partial, b: Partial) -> Partial:
    """The attention over the keys of both: one softmax, exactly. Both need their mass."""
    assert a.mass is not None and b.mass is not None
    mass = torch.logaddexp(a.mass, b.mass)
    answer = widen(a.answer) * torch.exp(a.mass - mass) + widen(b.answer) * torch.exp(b.mass - mass)
    return Partial(answer.to(a.answer.dtype), mass)
