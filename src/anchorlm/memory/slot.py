"""Writing a slot: from a layer's keys and values to the states that its readers need.

Shapes: B rows, T new tokens, Hkv KV heads, H state heads (Hkv or Hq), d head width, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..ops.chunks import Chunks
from ..ops.rows import Span
from ..ops.wide import widen
from ..ops.window import rotate
from ..plan import ModelShape, Slot
from ..state import SlotState
from .base import Memory, Weights

Rotary = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Trace:
    """What readers need of one slot in one call: the states at its chunk boundaries.

    states[i] is the readable state after i chunks of this call.
    """

    rule: type[Memory]
    chunks: Chunks
    states: tuple[Weights, ...]

    def runs(self) -> list[Run]:
        """The tokens of the call, cut where a row changes the state it reads."""
        return [self._run(first, last, seen) for first, last, seen in self.chunks.reads()]

    def _run(self, first: int, last: int, seen: tuple[int, ...]) -> Run:
        written = tuple(w + s > 0 for w, s in zip(self.chunks.written, seen, strict=True))
        if len(set(seen)) == 1:
            return Run(first, last, self.states[seen[0]], written)
        names = self.states[0]
        state = {n: torch.stack([self.states[s][n][row] for row, s in enumerate(seen)]) for n in names}
        return Run(first, last, state, written)


@dataclass(frozen=True)
class Run:
    """Tokens first .. last - 1 read `state`; written says for each row whether anything stands in it."""

    first: int
    last: int
    state: Weights
    written: tuple[bool, ...]


class Features(nn.Module):
    """Keys or queries as the memory sees them: an own scale and offset, an activation, unit length, perhaps RoPE."""

    def __init__(self, slot: Slot, heads: int, dim: int):
        super().__init__()
        self.slot, self.length = slot, slot.rule_options.key_length(dim)
        self.scale = nn.Parameter(torch.ones(heads, 1, dim))
        self.offset = nn.Parameter(torch.zeros(heads, 1, dim))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.offset)

    def forward(self, u: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
        """[B, H, T, d] in fp32 or wider, from pre-RoPE u [B, H, T, d] at positions [B or 1, T]."""
        u = widen(u) * self.scale + self.offset
        u = F.silu(u) if self.slot.act == "silu" else u
        u = F.normalize(u, dim=-1, eps=1e-6) * self.length
        if self.slot.rope == "none":
            return u
        place = positions % self.slot.chunk if self.slot.rope == "chunk" else positions
        cos, sin = rotary(place)
        return rotate(u, cos.to(u.dtype), sin.to(u.dtype))


class ShortConv(nn.Module):
    """x plus a causal depthwise convolution of x, over raw keys and values; the identity at the start."""

    def __init__(self, width: int, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, channels))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, tail: Tensor | None, span: Span) -> tuple[Tensor, Tensor]:
        """y [B, T, N] and the new tail [B, width - 1, N] from x [B, T, N]; a text starts on zeros."""
        back = self.weight.shape[0] - 1
        stream = torch.cat([x.new_zeros(x.shape[0], back, x.shape[2]) if tail is None else tail, x], 1)
        fresh = [s == 0 for s in span.start]
        if tail is not None and any(fresh):
            keep = torch.tensor([not f for f in fresh], device=x.device)[:, None, None]
            stream = torch.cat([stream[:, :back] * keep, x], 1)
        taps = [self.weight[i].to(x.dtype) * stream[:, i : i + x.shape[1]] for i in range(back + 1)]
        index = torch.tensor(span.length, device=x.device)[:, None] + torch.arange(back, device=x.device)
        return x + torch.stack(taps).sum(0), stream.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


class SlotWriter(nn.Module):
    """One slot's writer: features of the keys, the rule with its slow weights, an optional short convolution."""

    def __init__(self, slot: Slot, shape: ModelShape):
        super().__init__()
        self.slot, self.groups = slot, shape.kv_heads
        self.heads = shape.query_heads if slot.heads == "q" else shape.kv_heads
        rule = Memory.rules[slot.rule]
        self.memory = rule(slot.rule_options, self.heads, shape.head_dim, shape.hidden, shape.kv_heads)
        self.keys = Features(slot, self.heads, shape.head_dim) if rule.features else None
        self.value_scale = nn.Parameter(torch.ones(self.heads, 1, 1)) if rule.features else None
        self.conv = ShortConv(slot.conv, 2 * shape.kv_heads * shape.head_dim) if slot.conv else None

    def reset_parameters(self) -> None:
        if self.value_scale is not None:
            nn.init.ones_(self.value_scale)

    def forward(
        self,
        x: Tensor,
        k: Tensor,
        v: Tensor,
        state: SlotState,
        span: Span,
        rotary: Rotary,
        recompute: bool = False,
        detach: int = 0,
    ) -> tuple[Trace, SlotState]:
        """Write the new tokens. x: [B, T, D] layer input; k, v: [B, T, Hkv, d] before RoPE.

        Returns what readers need and the state after the call; the given state is left as it was. recompute: keep
        only the states at chunk boundaries for the backward pass and compute the rest again. detach: let gradients
        flow through at most so many chunks; 0 through all.
        """
        chunks = Chunks(self.slot.chunk, self.slot.lag, span)
        kv, tail = self._taps(k, v, state.tail, span)
        new = {"kv": kv, **self.memory.tokens(x, k)}
        stream = {name: chunks.join(state.buffer.get(name), value) for name, value in new.items()}
        held = self._begin(state.weights, chunks, kv)
        states = [self.memory.readable(held)]
        first = chunks.first_positions(x.device)
        for i in range(max(chunks.commits)):
            if detach and i and i % detach == 0:
                held = {name: value.detach() for name, value in held.items()}
            if recompute:
                held = checkpoint(self._commit, held, stream, i, chunks, first, rotary, use_reentrant=False)
            else:
                held = self._commit(held, stream, i, chunks, first, rotary)
            states.append(self.memory.readable(held))
        buffer = {name: chunks.rest(value) for name, value in stream.items()}
        stands = state.weights is not None or max(chunks.commits) > 0
        return Trace(type(self.memory), chunks, tuple(states)), SlotState(held if stands else None, buffer, tail)

    def _taps(self, k: Tensor, v: Tensor, tail: Tensor | None, span: Span) -> tuple[Tensor, Tensor | None]:
        kv = torch.cat([k, v], -1)
        if self.conv is None:
            return kv, None
        flat, tail = self.conv(kv.flatten(2), tail, span)
        return flat.unflatten(2, kv.shape[2:]), tail

    def _begin(self, weights: Weights | None, chunks: Chunks, like: Tensor) -> Weights:
        """The carried state; rows of which nothing was written yet take the learned start."""
        fresh = [count == 0 for count in chunks.written]
        if weights is not None and not any(fresh):
            return weights
        start = self.memory.start(len(fresh), like)
        if weights is None:
            return start
        rows = torch.tensor(fresh, device=next(iter(weights.values())).device)[:, None, None, None]
        return {name: torch.where(rows, start[name], value) for name, value in weights.items()}

    def _commit(self, held: Weights, stream: Weights, i: int, chunks: Chunks, first: Tensor, rotary: Rotary) -> Weights:
        """Write chunk i of the stream into every row that has completed it."""
        begin, size = i * self.slot.chunk, self.slot.chunk
        taken = {name: _columns(value, begin, size) for name, value in stream.items()}
        k, v = taken.pop("kv").transpose(1, 2).chunk(2, -1)
        repeats = self.heads // self.groups
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        positions = first + torch.arange(begin, begin + size, device=first.device)
        if self.keys is not None and self.value_scale is not None:
            k, v = self.keys(k, positions, rotary), widen(v) * self.value_scale
        written = self.memory.write(held, k, v, {**taken, "positions": positions})
        done = [count > i for count in chunks.commits]
        if all(done):
            return written
        rows = torch.tensor(done, device=k.device)[:, None, None, None]
        return {name: torch.where(rows, written[name], held[name]) for name in held}


def _columns(x: Tensor, begin: int, size: int) -> Tensor:
    """Columns begin .. begin + size - 1; a ragged stream may be shorter where no row is complete."""
    part = x[:, begin : begin + size]
    missing = size - part.shape[1]
    return part if not missing else torch.cat([part, part.new_zeros(part.shape[0], missing, *part.shape[2:])], 1)
