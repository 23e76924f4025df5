"""Writing a slot: from a layer's keys and values to what its readers need, and the state that is carried on.

Shapes: B rows, T new tokens, Hkv KV heads, H state heads (Hkv or Hq), d head width, D model width.
"""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..ops.chunks import Chunks
from ..ops.near import Near
from ..ops.rows import Span
from ..ops.wide import widen
from ..plan import ModelShape, Slot
from ..state import SlotState
from .base import Memory, Weights, check_given
from .features import Features, Rotary
from .streaming import leaving_tokens, own_tokens, stream_slot
from .trace import StreamTrace, Trace


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
        self.slot, self.taken = slot, slot.taken(shape)
        self.heads, self.groups = slot.state_heads(shape), len(self.taken)
        rule = Memory.rules[slot.rule]
        self.memory = rule(slot.rule_options, self.heads, shape.head_dim, shape.hidden, self.groups)
        self.keys = rule.feature_map(slot, self.heads, shape.head_dim) if rule.feature_map else None
        self.value_scale = nn.Parameter(torch.ones(self.heads, 1, 1)) if isinstance(self.keys, Features) else None
        self.conv = ShortConv(slot.conv, 2 * self.groups * shape.head_dim) if slot.conv else None

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
        near: Near | None = None,
    ) -> tuple[Trace | StreamTrace, SlotState]:
        """Write the new tokens, or those that leave `near`. x: [B, T, D] layer input; k, v: [B, T, Hkv, d] before RoPE,
        of the KV heads that the slot takes.

        Returns what readers need and the state after the call; the given state is left as it was. recompute: keep
        only the states at chunk boundaries for the backward pass and compute the rest again. detach: let gradients
        flow through at most so many chunks; 0 through all.
        """
        if self.slot.lag == "self":
            given = own_tokens(self.memory, x, k, v, span, rotary)
            return stream_slot(self, given, state, True, detach)
        if self.slot.lag == "evicted":
            assert near is not None
            if near.reach.kind == "window":
                return stream_slot(self, leaving_tokens(near, span), state, False, detach)
            chunks = Chunks(near.reach.limit // 2, 1, span)  # a terrace lets go of a whole block, one block later
            trace, held = self._commit_all({"kv": near.stream(chunks)}, state, chunks, None, recompute, detach)
            return trace, SlotState(held)
        chunks = Chunks(self.slot.chunk, self.slot.behind, span)
        kv, tail = self._taps(k, v, state.tail, span)
        brought = self.memory.tokens(x, k)
        check_given(type(self.memory), "tokens", brought, x.shape[:2])
        new = {"kv": kv, **brought}
        stream = {name: chunks.join(state.buffer.get(name), value) for name, value in new.items()}
        trace, held = self._commit_all(stream, state, chunks, rotary, recompute, detach)
        return trace, SlotState(held, {name: chunks.rest(value) for name, value in stream.items()}, tail)

    def _commit_all(
        self, stream: Weights, state: SlotState, chunks: Chunks, rotary: Rotary | None, recompute: bool, detach: int
    ) -> tuple[Trace, Weights | None]:
        """Write every chunk that this call completes: the trace, and the weights after it; None if nothing stands."""
        held = self.begin(state.weights, [count == 0 for count in chunks.written], stream["kv"])
        states = [self.memory.readable(held)]
        first = chunks.first_positions(stream["kv"].device)
        for i in range(max(chunks.commits)):
            if detach and i and i % detach == 0:
                held = {name: value.detach() for name, value in held.items()}
            if recompute:
                held = checkpoint(self._commit, held, stream, i, chunks, first, rotary, use_reentrant=False)
            else:
                held = self._commit(held, stream, i, chunks, first, rotary)
            states.append(self.memory.readable(held))
        stands = state.weights is not None or max(chunks.commits) > 0
        return Trace(type(self.memory), chunks, tuple(states)), held if stands else None

    def _taps(self, k: Tensor, v: Tensor, tail: Tensor | None, span: Span) -> tuple[Tensor, Tensor | None]:
        kv = torch.cat([k, v], -1)
        if self.conv is None:
            return kv, None
        flat, tail = self.conv(kv.flatten(2), tail, span)
        return flat.unflatten(2, kv.shape[2:]), tail

    def begin(self, weights: Weights | None, fresh: list[bool], like: Tensor) -> Weights:
        """The carried state; rows marked as fresh, of which nothing was written yet, take the learned start."""
        if weights is not None and not any(fresh):
            return weights
        start = self.memory.start(len(fresh), like)
        check_given(type(self.memory), "start", start, (len(fresh), self.heads))
        if weights is None:
            return start
        rows = torch.tensor(fresh, device=next(iter(weights.values())).device)[:, None, None, None]
        return {name: torch.where(rows, start[name], value) for name, value in weights.items()}

    def _commit(
        self, held: Weights, stream: Weights, i: int, chunks: Chunks, first: Tensor, rotary: Rotary | None
    ) -> Weights:
        """Write chunk i of the stream into every row that has completed it."""
        begin, size = i * chunks.chunk, chunks.chunk
        taken = {name: _columns(value, begin, size) for name, value in stream.items()}
        k, v = taken.pop("kv").transpose(1, 2).chunk(2, -1)
        repeats = self.heads // self.groups
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        positions = first + torch.arange(begin, begin + size, device=first.device)
        taken |= {"positions": positions, "raw": k}
        if self.keys is not None:
            k = self.keys(k, positions, rotary)
        if self.value_scale is not None:
            v = widen(v) * self.value_scale
        written = self.memory.write(held, k, v, taken)
        check_given(type(self.memory), "write", written, held)
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
