"""KV heads taken out of a layer and put back; the query heads of a KV head go with it.

Shapes: B rows, Hq = g Hkv query heads, T tokens, d head width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..reach import Heads
from .partials import Partial


def pick(x: Tensor, heads: Heads, kv_heads: int) -> Tensor:
    """The heads of x [B, g Hkv, T, d] that belong to the KV heads `heads`, in their order; x itself when all do."""
    if heads == tuple(range(kv_heads)):
        return x
    return x.unflatten(1, (kv_heads, -1))[:, list(heads)].flatten(1, 2)


def combine(parts: Mapping[Heads, Partial]) -> Partial:
    """All heads of a layer in order, from the attention of each group; a single group is left as it is.

    Where some groups have a mass, the others get one beside which nothing joined later has any weight.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    answer = _in_order({heads: part.answer for heads, part in parts.items()})
    known = [part.mass.dtype for part in parts.values() if part.mass is not None]
    if not known:
        return Partial(answer)
    return Partial(answer, _in_order({heads: _mass(part, known[0]) for heads, part in parts.items()}))


def _mass(part: Partial, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max
    return torch.full_like(part.answer[..., :1], most, dtype=dtype) if part.mass is None else part.mass


def _in_order(groups: Mapping[Heads, Tensor]) -> Tensor:
    single = {
        head: x
        for heads, tensor in groups.items()
        for head, x in zip(heads, tensor.unflatten(1, (len(heads), -1)).unbind(1), strict=True)
    }
    return torch.stack([single[head] for head in sorted(single)], 1).flatten(1, 2)
