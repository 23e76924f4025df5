"""The hybrid attention layer: a pretrained layer's projections, limited attention, slots written and read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from ..memory.slot import SlotWriter, Trace
from ..ops import window
from ..ops.heads import combine, pick
from ..ops.partials import Partial
from ..ops.rows import Span
from ..plan import ModelShape, Plan, Reach, Slot
from ..reach import Heads
from ..state import AttentionState, SlotState, of_heads
from .joint import JointReader
from .reader import SlotReader


@dataclass(frozen=True)
class Step:
    """What all layers share in one call. reaches: the plan's, cut to what the teacher's own layer sees.

    rotary(positions [B or 1, T]) gives cos and sin [B or 1, T, d]; positions are those of the new tokens.
    memo holds what layers of equal reach have in common, computed by the first of them.
    """

    plan: Plan
    reaches: tuple[Reach, ...]
    span: Span
    positions: Tensor
    rotary: Callable[[Tensor], tuple[Tensor, Tensor]]
    angles: tuple[Tensor, Tensor]
    recompute: bool = False
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def shared(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """The value of `compute`, computed once in this call."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]


class LayerCall:
    """The holder that carries one layer's inputs in and its results out; lives for one call of one layer.

    A plain object on purpose: dictionaries and dataclasses are rebuilt by sharding wrappers, which would leave the
    results in a copy; caches are dropped by checkpointing.
    """

    def __init__(
        self,
        step: Step,
        index: int,
        attention: dict[Heads, AttentionState],
        slots: dict[str, SlotState],
        traces: dict[str, Trace],
    ) -> None:
        self.step, self.index, self.attention, self.slots, self.traces = step, index, attention, slots, traces
        self.inputs: Tensor | None = None
        self.captured: Tensor | None = None
        self.new_attention: dict[Heads, AttentionState] = {}
        self.new_slots: dict[str, SlotState] = {}
        self.new_traces: dict[str, Trace] = {}


def build_reader(slot: Slot, shape: ModelShape) -> nn.Module:
    """How a layer reads this slot: under its own softmax, or as a branch of its own."""
    return JointReader(slot, shape) if slot.rule_options.joint else SlotReader(slot, shape)


class HybridAttention(nn.Module):
    """Takes the place of a pretrained layer's attention and keeps its projections under their own names."""

    def __init__(self, original: nn.Module, shape: ModelShape, layer: int, plan: Plan):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
            self.add_module(name, getattr(original, name, None))
        self.shape, self.scale = shape, original.scaling
        self.writers = nn.ModuleDict({name: SlotWriter(plan.slots[name], shape) for name in plan.writes(layer)})
        self.readers = nn.ModuleDict({name: build_reader(plan.slots[name], shape) for name in plan.reads(layer)})

    def forward(self, hidden_states: Tensor, call: LayerCall, **_: object) -> tuple[Tensor, None]:
        """[B, T, D] from the layer's normalised input [B, T, D]; state and traces travel in `call`."""
        q, k, v = self.project(hidden_states)
        self._write(hidden_states, k, v, call)
        attended = self._attend(q, k, v, call)
        for name, trace in self._traces(call, joint=True) if attended.mass is not None else ():
            reach = call.step.reaches[call.index]
            attended = self.readers[name](attended, q, trace, call.step.positions, call.step.rotary, reach, self.scale)
        attended = attended.answer
        for name, trace in self._traces(call, joint=False):
            attended = self.readers[name](attended, hidden_states, q, trace, call.step.positions, call.step.rotary)
        call.inputs, call.captured = hidden_states, attended.transpose(1, 2).flatten(2)
        return self.o_proj(call.captured), None

    def _traces(self, call: LayerCall, joint: bool) -> list[tuple[str, Trace]]:
        """The slots that this layer reads, those that join its softmax or the others."""
        plan = call.step.plan
        names = [name for name in plan.reads(call.index) if plan.slots[name].rule_options.joint == joint]
        return [(name, call.new_traces.get(name) or call.traces[name]) for name in names]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, Hq, T, d], keys and values [B, Hkv, T, d], before RoPE, after the family's own norms."""
        q, k, v = (p(x).unflatten(-1, (-1, self.shape.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Partial:
        """Heads of one reach together. Kept tokens join those of the layer's own reach; the others have no mass."""
        parts, count = {}, self.shape.kv_heads
        for reach, heads in call.step.reaches[call.index].groups(count).items():
            parts[heads] = self._attend_alike(*(pick(x, heads, count) for x in (q, k, v)), reach, heads, call)
        return combine(parts)

    def _attend_alike(self, q: Tensor, k: Tensor, v: Tensor, reach: Reach, heads: Heads, call: LayerCall) -> Partial:
        """Attention of the KV heads `heads`, all of this reach, whose new state goes into `call`."""
        step, old = call.step, of_heads(call.attention, heads)
        if reach.kind == "none":
            call.new_attention[heads] = old or AttentionState(k[:, :, :0], v[:, :, :0])
            return Partial(torch.zeros_like(q))
        rotated = window.rotate(k, *step.angles)
        keys = rotated if old is None else torch.cat([old.keys, rotated], 2)
        values = v if old is None else torch.cat([old.values, v], 2)
        sinks = self._sinks(q, rotated, v, reach, old, step) if reach.sinks else None
        size = None if reach.kind == "full" else (reach.window or reach.segment or 1) - 1
        kept = window.keep(keys, values, step.span, size)
        call.new_attention[heads] = AttentionState(*kept, *((sinks.keys, sinks.values) if sinks else (None, None)))
        cached = keys.shape[2] - step.span.width
        plan = None
        if reach.kind != "full":
            key = ("bands", reach, cached)
            plan = step.shared(key, lambda: window.bands(reach, step.span, cached, q.device, q.dtype))
        given = (window.rotate(q, *step.angles), keys, values, reach, step.span, self.scale, sinks, plan)
        joined = reach == step.reaches[call.index].own and self._traces(call, joint=True)
        return window.attend_partial(*given) if joined else Partial(window.attend(*given))

    @staticmethod
    def _sinks(
        q: Tensor, rotated: Tensor, v: Tensor, reach: Reach, old: AttentionState | None, step: Step
    ) -> window.Sinks:
        held = (None, None) if old is None else (old.sink_keys, old.sink_values)
        keys = window.keep_sinks(held[0], rotated, step.span, reach.sinks)
        values = window.keep_sinks(held[1], v, step.span, reach.sinks)
        if max(step.span.end) <= (reach.window or 0):
            return window.Sinks(keys, values, q)
        angles = step.shared(("sinks", reach), lambda: step.rotary(window.sink_position(step.positions, reach)))
        return window.Sinks(keys, values, window.rotate(q, *angles))

    def _write(self, x: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> None:
        step = call.step
        for name in step.plan.writes(call.index):
            state = call.slots.get(name, SlotState())
            k_tokens, v_tokens = k.transpose(1, 2), v.transpose(1, 2)
            options = (step.recompute, step.plan.slots[name].detach)
            trace, new = self.writers[name](x, k_tokens, v_tokens, state, step.span, step.rotary, *options)
            call.new_traces[name], call.new_slots[name] = trace, new
