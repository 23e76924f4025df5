"""The hybrid attention layer: a pretrained layer's projections, limited attention, slots written and read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn as nn
from torch import Tensor

from ..memory.slot import SlotWriter
from ..memory.trace import StreamTrace, Trace
from ..ops import window
from ..ops.heads import combine, pick
from ..ops.near import Near
from ..ops.partials import Partial, join
from ..ops.rows import Span
from ..plan import ModelShape, Plan, Reach, Slot
from ..reach import Heads
from ..state import AttentionState, SlotState, of_heads
from .joint import JointReader
from .reader import MetaLogits, SlotReader

# The ways a reader joins, in the order in which they act.
ON_SUMS, ON_ANSWERS, AFTER = ("joint", "shared"), ("add", "sum", "convex"), ("residual",)


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
        traces: dict[str, Trace | StreamTrace],
    ) -> None:
        self.step, self.index, self.attention, self.slots, self.traces = step, index, attention, slots, traces
        self.inputs: Tensor | None = None
        self.captured: Tensor | None = None
        self.new_attention: dict[Heads, AttentionState] = {}
        self.new_slots: dict[str, SlotState] = {}
        self.new_traces: dict[str, Trace | StreamTrace] = {}


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
        meta = plan.layers[layer].meta
        self.meta_logits = MetaLogits(meta) if meta else None

    def forward(self, hidden_states: Tensor, call: LayerCall, **_: object) -> tuple[Tensor, None]:
        """[B, T, D] from the layer's normalised input [B, T, D]; state and traces travel in `call`."""
        q, k, v = self.project(hidden_states)
        count = self.shape.kv_heads
        nears = {
            heads: self._near(pick(k, heads, count), pick(v, heads, count), reach, heads, call)
            for reach, heads in call.step.reaches[call.index].groups(count).items()
        }
        self._write(hidden_states, k, v, next(iter(nears.values())), call)
        attended = self._attend(q, nears, call)
        for name, trace in self._traces(call, ON_SUMS) if attended.mass is not None else ():
            attended = self._read(name, attended, hidden_states, q, trace, call)
        for name, trace in self._traces(call, ON_ANSWERS):
            attended = self._read(name, attended, hidden_states, q, trace, call)
        answer = attended.answer.to(v.dtype)
        call.inputs, call.captured = hidden_states, answer.transpose(1, 2).flatten(2)
        output = self.o_proj(call.captured)
        for name, trace in self._traces(call, AFTER):
            read = self._read(name, attended, hidden_states, q, trace, call).answer
            output = output + self.readers[name].project(read).to(output.dtype)
        return output, None

    def _read(self, name: str, attended: Partial, x: Tensor, q: Tensor, trace: Any, call: LayerCall) -> Partial:
        step, reader = call.step, self.readers[name]
        if isinstance(reader, JointReader):
            return reader(attended, q, trace, step.positions, step.rotary, step.reaches[call.index], self.scale)
        return reader(attended, x, q, trace, step.positions, step.rotary)

    def _traces(self, call: LayerCall, kinds: tuple[str, ...]) -> list[tuple[str, Any]]:
        """The slots that this layer reads and joins in one of these ways."""
        plan = call.step.plan
        names = [name for name in plan.reads(call.index) if plan.slots[name].mix.kind in kinds]
        return [(name, call.new_traces.get(name) or call.traces[name]) for name in names]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, Hq, T, d], keys and values [B, Hkv, T, d], before RoPE, after the family's own norms."""
        q, k, v = (p(x).unflatten(-1, (-1, self.shape.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _near(self, k: Tensor, v: Tensor, reach: Reach, heads: Heads, call: LayerCall) -> Near | None:
        """What the KV heads `heads` of this reach have at hand; what they keep for the next call goes into `call`."""
        step, old = call.step, of_heads(call.attention, heads)
        if reach.kind == "none":
            call.new_attention[heads] = old or AttentionState(k[:, :, :0], v[:, :, :0])
            return None
        k = window.rotate(k, *step.angles) if reach.positions == "rope" else k
        keys = k if old is None else torch.cat([old.keys, k], 2)
        values = v if old is None else torch.cat([old.values, v], 2)
        held = (None, None) if old is None else (old.sink_keys, old.sink_values)
        sinks: list[Tensor | None] = [None, None]
        if reach.sinks:
            sinks = [window.keep_sinks(h, new, step.span, reach.sinks) for h, new in zip(held, (k, v), strict=True)]
        size = None if reach.limit is None else reach.limit - 1
        kept = window.keep(keys, values, step.span, size)
        call.new_attention[heads] = AttentionState(*kept, *sinks, positions=reach.positions)
        return Near(reach, keys, values, keys.shape[2] - step.span.width, *sinks)

    def _attend(self, q: Tensor, nears: dict[Heads, Near | None], call: LayerCall) -> Partial:
        """Heads of one reach together. What joins on sums joins those of the layer's own reach."""
        count, own = self.shape.kv_heads, call.step.reaches[call.index].own
        on_sums = bool(self._traces(call, ON_SUMS))
        parts = {
            heads: self._attend_alike(pick(q, heads, count), near, call.step, on_sums and near.reach == own)
            if near is not None
            else Partial(torch.zeros_like(pick(q, heads, count)))
            for heads, near in nears.items()
        }
        return combine(parts)

    def _attend_alike(self, q: Tensor, near: Near, step: Step, with_mass: bool) -> Partial:
        reach, plan = near.reach, None
        if reach.limit is not None:
            key = ("bands", reach, near.cached)
            plan = step.shared(key, lambda: window.bands(reach, step.span, near.cached, q.device, q.dtype))
        placed = window.rotate(q, *step.angles) if reach.positions == "rope" else q
        sinks = self._sinks(q, near, step) if reach.sinks else None
        given = (placed, near.keys, near.values, reach, step.span, self.scale, sinks, plan)
        if not reach.meta:
            return window.attend_partial(*given) if with_mass else Partial(window.attend(*given))
        assert self.meta_logits is not None
        attended = window.attend_partial(*given)
        return join(attended, self.meta_logits.partial(attended))

    def _sinks(self, q: Tensor, near: Near, step: Step) -> window.Sinks:
        if max(step.span.end) <= (near.reach.window or 0):
            return window.Sinks(near.sink_keys, near.sink_values, q)
        place = window.sink_position(step.positions, near.reach)
        angles = step.shared(("sinks", near.reach), lambda: step.rotary(place))
        return window.Sinks(near.sink_keys, near.sink_values, window.rotate(q, *angles))

    def _write(self, x: Tensor, k: Tensor, v: Tensor, near: Near | None, call: LayerCall) -> None:
        step = call.step
        for name in step.plan.writes(call.index):
            state = call.slots.get(name, SlotState())
            taken, count = self.writers[name].taken, self.shape.kv_heads
            k_tokens, v_tokens = (pick(new, taken, count).transpose(1, 2) for new in (k, v))
            options = (step.recompute, step.plan.slots[name].detach, near)
            trace, new = self.writers[name](x, k_tokens, v_tokens, state, step.span, step.rotary, *options)
            call.new_traces[name], call.new_slots[name] = trace, new
