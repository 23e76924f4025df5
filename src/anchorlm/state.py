"""What a hybrid remembers of the text it has read: plain data, passed in and returned, never kept on a module.

Shapes: B rows, Hkv KV heads, d head width, n cached tokens, s sinks, r buffered tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .reach import Heads

Mapper = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AttentionState:
    """Keys and values that some KV heads of one layer can still see.

    keys, values: [B, Hkv, n, d], keys after RoPE, the newest token last. Column j of a row that has read p tokens
    is its token p - n + j; a negative number is an empty column.
    sink_keys, sink_values: [B, Hkv, s, d] or None, the first tokens of the text, keys after RoPE at their positions.
    positions: "rope", or "none" where keys were left unturned.
    """

    keys: Tensor
    values: Tensor
    sink_keys: Tensor | None = None
    sink_values: Tensor | None = None
    positions: str = "rope"

    def map(self, function: Mapper) -> AttentionState:
        tensors = ("keys", "values", "sink_keys", "sink_values")
        return replace(self, **{name: _apply(function, getattr(self, name)) for name in tensors})

    def parts(self) -> dict[str, int]:
        """Bytes held, by part."""
        sinks = sum(t.nbytes for t in (self.sink_keys, self.sink_values) if t is not None)
        return {"keys and values": self.keys.nbytes + self.values.nbytes, "sinks": sinks}


@dataclass(frozen=True)
class SlotState:
    """One slot's recurrent state.

    weights: the rule's tensors, [B, H, n, m], or None while nothing was written: the learned start then holds.
    buffer: tokens of chunks that are not yet written, each [B, r, ...], the oldest first.
    tail: the last raw keys and values that a short convolution still needs, [B, conv - 1, Hkv, 2 d], or None.
    """

    weights: dict[str, Tensor] | None = None
    buffer: dict[str, Tensor] = field(default_factory=dict)
    tail: Tensor | None = None

    def map(self, function: Mapper) -> SlotState:
        weights = None if self.weights is None else {k: function(v) for k, v in self.weights.items()}
        return SlotState(weights, {k: function(v) for k, v in self.buffer.items()}, _apply(function, self.tail))

    def parts(self) -> dict[str, int]:
        """Bytes held, by part; momentum is counted apart from the fast weights."""
        weights = self.weights or {}
        total = sum(t.nbytes for t in weights.values())
        momentum = sum(t.nbytes for k, t in weights.items() if k.startswith("momentum"))
        kept = total if "keys" in weights else 0
        buffered = sum(t.nbytes for t in self.buffer.values())
        return {
            "fast weights": total - momentum - kept,
            "momentum": momentum,
            "kept tokens": kept,
            "chunk buffer": buffered + (0 if self.tail is None else self.tail.nbytes),
        }


@dataclass(frozen=True)
class ModelState:
    """Everything a model remembers. position: [B] int64, the tokens each row has read since its start.

    attention has one entry a layer: the state of each group of KV heads with one reach, nothing before the first token.
    """

    position: Tensor
    attention: tuple[dict[Heads, AttentionState], ...]
    slots: dict[str, SlotState] = field(default_factory=dict)

    @classmethod
    def empty(cls, rows: int, layers: int, device: torch.device | str = "cpu") -> ModelState:
        return cls(torch.zeros(rows, dtype=torch.long, device=device), tuple({} for _ in range(layers)))

    @property
    def rows(self) -> int:
        return self.position.shape[0]

    def map(self, function: Mapper) -> ModelState:
        """The state with `function` applied to every tensor; all have the rows first."""
        return ModelState(
            function(self.position),
            tuple({heads: held.map(function) for heads, held in layer.items()} for layer in self.attention),
            {name: slot.map(function) for name, slot in self.slots.items()},
        )

    def select(self, rows: Tensor) -> ModelState:
        """The state whose row i is this state's row rows[i]; repeats and reorders beams."""
        return self.map(lambda tensor: tensor.index_select(0, rows.to(tensor.device)))

    def detach(self) -> ModelState:
        return self.map(torch.Tensor.detach)

    def clone(self) -> ModelState:
        return self.map(torch.Tensor.clone)

    def compact(self) -> ModelState:
        """The same state without the blocks it was cut from: a slice keeps all of the tensor behind it alive."""
        return self.map(_own)

    def with_positions(self, position: Tensor) -> ModelState:
        return replace(self, position=position)


def of_heads(groups: Mapping[Heads, AttentionState], heads: Heads) -> AttentionState | None:
    """The state of these KV heads, out of whichever groups hold them; None before the first token.

    From groups of unlike reach: the newest tokens, and the sinks, that all of them have.
    """
    if heads in groups or not groups:
        return groups.get(heads)
    single = {
        head: held.map(lambda tensor, at=at: tensor[:, at : at + 1])
        for group, held in groups.items()
        for at, head in enumerate(group)
    }
    found = [single[head] for head in heads]
    keys, values = (_beside([getattr(held, name) for held in found], newest=True) for name in ("keys", "values"))
    assert keys is not None and values is not None
    sinks = (_beside([getattr(held, name) for held in found], newest=False) for name in ("sink_keys", "sink_values"))
    return AttentionState(keys, values, *sinks)


def _beside(parts: list[Tensor | None], newest: bool) -> Tensor | None:
    """Heads side by side, with as many tokens as all of them have, the newest or the first; None where one has none."""
    held = [part for part in parts if part is not None]
    if len(held) < len(parts):
        return None
    count = min(part.shape[2] for part in held)
    return torch.cat([part[:, :, part.shape[2] - count :] if newest else part[:, :, :count] for part in held], 1)


def _apply(function: Mapper, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else function(tensor)


def _own(tensor: Tensor) -> Tensor:
    """The tensor, copied only when its memory is well above its size; a ring that moves by one token is not."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > 1.25 * tensor.nbytes else tensor
