"""What attention, or a memory, says over some of the tokens, before it is divided by its weights; and the join of two.

Every mixer works on these: a softmax over two sets of keys needs their highest logits, a shared normaliser needs the
sums of the weights, and any other mixer the finished answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .wide import widen


class Partial(NamedTuple):
    """Values summed with their weights: [B, Hq, N, d].

    mass [B, Hq, N, 1]: the sum of the weights, in fp32 or wider; None where `summed` is the finished answer and nothing
    can be joined under one normaliser. peak [B, Hq, N, 1]: the weights are exp(logit - peak); None where they are not
    exponentials.
    """

    summed: Tensor
    mass: Tensor | None = None
    peak: Tensor | None = None

    @property
    def answer(self) -> Tensor:
        """The weighted mean; 0 where nothing has a weight."""
        if self.mass is None:
            return self.summed
        return (widen(self.summed) / self.mass.masked_fill(self.mass == 0, 1.0)).to(self.summed.dtype)


def join(a: Partial, b: Partial) -> Partial:
    """Both sets of keys under one softmax, exactly (online softmax). Both need mass and peak."""
    assert a.mass is not None and b.mass is not None and a.peak is not None and b.peak is not None
    peak = torch.maximum(a.peak, b.peak)
    left, right = torch.exp(a.peak - peak), torch.exp(b.peak - peak)
    summed = widen(a.summed) * left + widen(b.summed) * right
    return Partial(summed.to(a.summed.dtype), a.mass * left + b.mass * right, peak)


def concatenate(parts: Sequence[Partial]) -> Partial:
    """Partials of consecutive tokens as one; all have the same fields."""
    return Partial(*(None if each[0] is None else torch.cat(each, 2) for each in zip(*parts, strict=True)))
