"""Writing a slot token by token: every token of the call, or those that leave the layer's window.

Shapes: B rows, T new tokens, Hkv KV heads, H state heads, d head width, D model width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..ops.near import Near
from ..ops.rows import Span
from ..state import SlotState
from .base import Weights
from .features import Rotary
from .linear_attention import StreamMemory, Timing
from .trace import StreamTrace


class Given(NamedTuple):
    """Tokens to write: k, v [B, Hkv, T, d], what else they bring, and which of them count.

    rotary is None where the keys have their positions. written says of each row whether its state already holds
    something, known [B or 1, T] which tokens find something to read.
    """

    k: Tensor
    v: Tensor
    extra: Weights
    valid: Tensor | None
    positions: Tensor
    rotary: Rotary | None
    written: list[bool]
    known: Tensor | None


def own_tokens(memory: StreamMemory, x: Tensor, k: Tensor, v: Tensor, span: Span, rotary: Rotary) -> Given:
    """Every new token, readable at once. x: [B, T, D]; k, v: [B, T, Hkv, d] before RoPE."""
    valid = None if all(n == span.width for n in span.length) else span.real(x.device)
    written = [start > 0 for start in span.start]
    given = (k.transpose(1, 2), v.transpose(1, 2), memory.tokens(x, k), valid, span.positions(x.device))
    return Given(*given, rotary, written, None)


def leaving_tokens(near: Near, span: Span) -> Given:
    """What leaves a sliding window, readable by the next token on."""
    assert near.reach.window is not None
    window, positions = near.reach.window, span.positions(near.keys.device)
    k, v, valid = near.leaving(span)
    written = [start >= window for start in span.start]
    return Given(k, v, {}, None if bool(valid.all()) else valid, positions, None, written, positions >= window)


def stream_slot(writer: Any, given: Given, state: SlotState, own: bool, detach: int) -> tuple[StreamTrace, SlotState]:
    """Write the tokens: what readers need, and the state after the call."""
    repeats = writer.heads // writer.groups
    k, v = given.k.repeat_interleave(repeats, 1), given.v.repeat_interleave(repeats, 1)
    held = writer.begin(state.weights, [not some for some in given.written], given.k)
    features = writer.keys(k, given.positions, given.rotary)
    timing = Timing(own, writer.slot.chunk, detach)
    after, read = writer.memory.stream(held, features, v, {**given.extra, "raw": k}, given.valid, timing)
    stands = state.weights is not None or given.valid is None or bool(given.valid.any())
    return StreamTrace(read, writer.heads, given.known), SlotState(after if stands else None)
