"""How a reader joins what it read to its layer's attention: one entry a mixer, with the parameters that it needs.

Shapes: B rows, T tokens, Hq query heads, d head width, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..memory.base import affine
from ..ops.partials import Partial
from ..ops.wide import widen
from ..plan import ModelShape
from ..plan_parts import Mix

Starts = dict[str, tuple[tuple[int, ...], float]]  # a parameter's shape, and the number that fills it


class Mixer(NamedTuple):
    """starts(mix, shape): the parameters. join(reader, attended, memory, x): the layer's attention with the memory.

    The reader holds the parameters under their names and its `mix`. attended, memory: Partials of [B, Hq, T, d];
    x: what the gate looks at, [B, T, D] or [B, T, Hq d] (`gate_input`). on_sums: it joins before the division and needs
    the masses.
    """

    starts: Callable[[Mix, ModelShape], Starts]
    join: Callable[[Any, Partial, Partial, Tensor], Partial]
    on_sums: bool = False


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _gate_starts(mix: Mix, shape: ModelShape, width: int, bias: float) -> Starts:
    """width: numbers a head."""
    outputs, inputs = shape.query_heads * width, shape.hidden
    if mix.gate == "query":
        inputs = shape.query_heads * shape.head_dim
    return {"gate_weight": ((outputs, inputs), 0.0), "gate_bias": ((outputs,), bias)}


def gate_input(mix: Mix, x: Tensor, q: Tensor) -> Tensor:
    """What a gate looks at: x [B, T, D], or q [B, Hq, T, d] as [B, T, Hq d] at unit mean square."""
    if mix.gate == "input":
        return x
    flat = widen(q).transpose(1, 2).flatten(2)
    return F.rms_norm(flat, flat.shape[-1:], eps=1e-6)


def _gate(reader: Any, x: Tensor, heads: int) -> Tensor:
    """[B, Hq, T, 1 or d] before its activation."""
    raw = affine(x, reader.gate_weight, reader.gate_bias)
    return raw.unflatten(-1, (heads, -1)).transpose(1, 2)


def _add(reader: Any, attended: Partial, memory: Partial, x: Tensor) -> Partial:
    near, far = attended.answer, memory.answer
    return Partial(near + (F.silu(_gate(reader, x, near.shape[1])) * far).to(near.dtype))


def _convex_starts(mix: Mix, shape: ModelShape) -> Starts:
    if mix.share is not None:
        return {}
    return _gate_starts(mix, shape, shape.head_dim, _logit(mix.begin))


def _convex(reader: Any, attended: Partial, memory: Partial, x: Tensor) -> Partial:
    near, far = attended.answer, memory.answer
    constant = reader.mix.share
    share = torch.sigmoid(_gate(reader, x, near.shape[1])) if constant is None else constant
    return Partial(near + (share * (far - near)).to(near.dtype))


def _head_starts(name: str, number: Callable[[float], float]) -> Callable[[Mix, ModelShape], Starts]:
    """One learned number a head, unless it is a constant."""

    def starts(mix: Mix, shape: ModelShape) -> Starts:
        return {} if mix.share is not None else {name: ((shape.query_heads,), number(mix.begin))}

    return starts


def _sum(reader: Any, attended: Partial, memory: Partial, x: Tensor) -> Partial:
    near, constant = attended.answer, reader.mix.share
    factor = widen(reader.gate_attention)[:, None, None] if constant is None else constant
    return Partial((factor * widen(near) + memory.answer).to(near.dtype))


def shared_weights(reader: Any) -> tuple[Tensor | float, Tensor | float]:
    """What attention's sums and the memory's are multiplied by under one normaliser, [Hq, 1, 1] each or a number."""
    constant = reader.mix.share
    share = torch.sigmoid(widen(reader.gate_share))[:, None, None] if constant is None else constant
    return share, 1 - share if reader.mix.affine else 1.0


def _shared(reader: Any, attended: Partial, memory: Partial, x: Tensor) -> Partial:
    """(s N_a + N_m) / (s Z_a + Z_m); attention's sums stay relative to its own highest logit (arXiv 2410.10254)."""
    assert attended.mass is not None and memory.mass is not None
    share, rest = shared_weights(reader)
    summed = share * widen(attended.summed) + rest * memory.summed
    return Partial(summed, share * attended.mass + rest * memory.mass, attended.peak)


def _residual_starts(mix: Mix, shape: ModelShape) -> Starts:
    return {"out_weight": ((shape.hidden, shape.query_heads * shape.head_dim), 0.0)}


def _residual(reader: Any, attended: Partial, memory: Partial, x: Tensor) -> Partial:
    """Only the answers, for they join after the output projection (`SlotReader.project`)."""
    return Partial(memory.answer)


MIXERS: dict[str, Mixer] = {
    "add": Mixer(lambda mix, shape: _gate_starts(mix, shape, 1, 0.0), _add),
    "convex": Mixer(_convex_starts, _convex),
    "sum": Mixer(_head_starts("gate_attention", float), _sum),
    "shared": Mixer(_head_starts("gate_share", _logit), _shared, on_sums=True),
    "residual": Mixer(_residual_starts, _residual),
}
