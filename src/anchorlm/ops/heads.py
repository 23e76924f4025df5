"""KV heads taken out of a layer and put back; the query heads of a KV head go with it.

Shapes: B rows, Hq = g Hkv query heads, T tokens, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..reach import Heads
from .partials import Partial


def pick(x: Tensor, heads: Heads, kv_heads: int) -> Tensor:
    """The heads of x [B, g Hkv, T, d] that belong to the KV heads `heads`, in their order; x itself when all do."""
    if heads == tuple(range(kv_heads)):
        return x
    return x.unflatten(1, (kv_heads, -1))[:, list(heads)].flatten(1, 2)


def replaced(whole: Partial, heads: Heads, kv_heads: int, change: Callable[[Partial], Partial]) -> Partial:
    """The attention of a layer, that of the KV heads `heads` as `change` leaves it."""
    if heads == tuple(range(kv_heads)):
        return change(whole)
    rest = tuple(head for head in range(kv_heads) if head not in heads)
    parts = {some: _of(whole, some, kv_heads) for some in (heads, rest)}
    return combine(parts | {heads: change(parts[heads])})


def _of(whole: Partial, heads: Heads, kv_heads: int) -> Partial:
    return Partial(*(x if x is None else pick(x, heads, kv_heads) for x in whole))


def combine(parts: Mapping[Heads, Partial]) -> Partial:
    """All heads of a layer in order, from the attention of each group; a single group is left as it is.

    Where some groups have a mass, the others get one beside which nothing joined later has any weight.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    known = [part.mass.dtype for part in parts.values() if part.mass is not None]
    given = {heads: _with_mass(part, known[0]) if known else part for heads, part in parts.items()}
    fields = zip(*given.values(), strict=True)
    return Partial(*(None if each[0] is None else _in_order(dict(zip(given, each, strict=True))) for each in fields))


def _with_mass(part: Partial, dtype: torch.dtype) -> Partial:
    """A finished answer as the one entry of a softmax whose logit nothing else comes near."""
    if part.mass is not None:
        return part
    one = torch.ones_like(part.summed[..., :1], dtype=dtype)
    return Partial(part.summed, one, one * torch.finfo(dtype).max)


def _in_order(groups: Mapping[Heads, Tensor]) -> Tensor:
    single = {
        head: x
        for heads, tensor in groups.items()
        for head, x in zip(heads, tensor.unflatten(1, (len(heads), -1)).unbind(1), strict=True)
    }
    return torch.stack([single[head] for head in sorted(single)], 1).flatten(1, 2)
