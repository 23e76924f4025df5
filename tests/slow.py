"""A whole slot, writer and reader, as loops over rows, heads and tokens on the reference operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anchorlm.ops import reference

FREQUENCIES = 1.0 / 7 ** (torch.arange(3, dtype=torch.float64) / 3)


def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, 6] for heads of width 6, as a backbone would give them."""
    table = positions[..., None].double() * torch.cat([FREQUENCIES, FREQUENCIES])
    return table.cos(), table.sin()


def feature(features, u: Tensor, head: int, position: int) -> Tensor:
    """One key or query [d] as the memory sees it."""
    slot = features.slot
    u = u * features.scale[head, 0] + features.offset[head, 0]
    u = u / (1 + torch.exp(-u)) if slot.act == "silu" else u
    u = u / u.square().sum().sqrt() * features.length
    if slot.rope == "none":
        return u
    return reference.rotate(u, position % slot.chunk if slot.rope == "chunk" else position, FREQUENCIES)


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


class SlowRow:
    """One row through one slot. x: [T, D]; k, v: [T, Hkv, d]."""

    def __init__(self, writer, x: Tensor, k: Tensor, v: Tensor):
        self.writer, self.slot, self.x = writer, writer.slot, x
        kv = torch.cat([k, v], -1)
        if writer.conv is not None:
            kv = reference.short_convolution(kv.flatten(1), writer.conv.weight).view(kv.shape)
        self.k, self.v = kv.chunk(2, -1)
        self.group = writer.heads // writer.groups
        self.states: dict[int, list] = {}

    def state_after(self, head: int, chunks: int):
        """The state of one state head after whole chunks."""
        states = self.states.setdefault(head, [self._start(head)])
        for n in range(len(states) - 1, chunks):
            tokens = range(n * self.slot.chunk, (n + 1) * self.slot.chunk)
            group = getattr(self.slot.rule_options, "group", 1)
            begun = states[n // group * group]
            states.append(self._update(states[n], head, tokens, begun))
            if group > 1:
                states[-1] |= {f"group.{name}": begun[name] for name in self.writer.memory.names}
                states[-1]["phase"] = torch.full((1, 1), (n + 1) % group, dtype=torch.float64)
        return states[chunks]

    def _start(self, head: int):
        memory = self.writer.memory
        if self.slot.rule in ("linear", "delta"):
            return memory.steps.weight.new_zeros(memory.dim, memory.dim)
        state = {name: memory.first(name)[head] for name in memory.names}
        if memory.options.momentum:
            state |= {f"momentum.{name}": torch.zeros_like(state[name]) for name in memory.names}
        return state

    def _update(self, state: Any, head: int, tokens: range, begun: Any):
        memory = self.writer.memory
        keys = torch.stack([feature(self.writer.keys, self.k[t, head // self.group], head, t) for t in tokens])
        values = torch.stack([self.v[t, head // self.group] for t in tokens]) * self.writer.value_scale[head, 0, 0]
        x = self.x[tokens.start : tokens.stop]
        steps = softplus(x @ memory.steps.weight.T + memory.steps.bias)
        if self.slot.rule == "linear":
            return reference.linear_update(state, keys, values, steps[:, head])
        if self.slot.rule == "delta":
            return reference.delta_update(state, keys, values, steps[:, head].clamp(max=1.0))
        slow = {name: memory.first(name)[head] for name in memory.names}
        shares = {
            name: sigmoid(x @ getattr(memory, f"{name}_weight")[head] + getattr(memory, f"{name}_bias")[head])
            for name, used in (("carry", memory.options.momentum), ("forget", memory.options.decay))
            if used
        }
        own = steps[:, head :: memory.heads]
        if self.slot.rule == "nmm":
            return reference.mlp_write(state, slow, keys, values, own, shares, memory.options.limit, begun)
        carry, forget = shares.get("carry"), shares.get("forget")
        return reference.swiglu_write(state, slow, keys, values, own, carry, memory.options, forget, begun)

    def answer(self, state, head: int, query: Tensor) -> Tensor:
        if self.slot.rule in ("linear", "delta"):
            return state @ query
        if self.slot.rule == "nmm":
            return reference.mlp({name: state[name] for name in self.writer.memory.names}, query)
        if self.slot.rule_options.row_norm == "pre":
            slow = self._start(head)
            state = {n: reference._rows_as(state[n], slow[n]) for n in reference.NAMES}
        return reference.swiglu(state, query)


def read(reader, row: SlowRow, q: Tensor, attended: Tensor) -> Tensor:
    """Attention joined with memory for one row: [Hq, T, d] from q before RoPE and attended, both [Hq, T, d]."""
    heads, tokens, _ = q.shape
    per_state = heads // reader.state_heads
    joined, given = [], row.x
    if row.slot.mix.gate == "query":
        flat = q.transpose(0, 1).flatten(1)
        given = flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()
    for head in range(heads):
        states = [row.state_after(head // per_state, n) for n in range(tokens // row.slot.chunk + 1)]
        joined.append(
            torch.stack(
                [_token(reader, row, states, head, t, q[head, t], attended[head, t], given[t]) for t in range(tokens)]
            )
        )
    return torch.stack(joined)


def _token(reader, row: SlowRow, states: list, head: int, t: int, q: Tensor, attended: Tensor, x: Tensor) -> Tensor:
    """x: what the gate looks at."""
    written = max(0, t // row.slot.chunk - row.slot.behind)
    if not written and row.slot.silent:
        return torch.zeros_like(attended) if row.slot.mix.kind == "residual" else attended
    per_state = len(reader.queries.scale) // reader.state_heads
    m = row.answer(states[written], head // per_state, feature(reader.queries, q, head, t))
    if reader.norm_weight is not None:
        m = m / (m.square().mean() + 1e-6).sqrt() * reader.norm_weight
    m = mapped(reader.map, head, m)
    mix = row.slot.mix
    if mix.kind == "residual":
        return m
    if mix.kind == "sum":
        return (reader.gate_attention[head] if mix.share is None else mix.share) * attended + m
    if mix.share is not None:
        return (1 - mix.share) * attended + mix.share * m
    width = len(reader.gate_bias) // len(reader.queries.scale)
    raw = (
        reader.gate_weight[head * width : (head + 1) * width] @ x + reader.gate_bias[head * width : (head + 1) * width]
    )
    if mix.kind == "convex":
        share = sigmoid(raw)
        return (1 - share) * attended + share * m
    return attended + raw / (1 + torch.exp(-raw)) * m


def exponential(m: Tensor) -> Tensor:
    """Matrix exponential by its series."""
    total = term = torch.eye(len(m), dtype=m.dtype)
    for n in range(1, 40):
        term = term @ m / n
        total = total + term
    return total


def mapped(read_map, head: int, m: Tensor) -> Tensor:
    """One answer [d] after the read map of a head: a stretch, then a rotation."""
    kind = type(read_map).__name__
    if kind == "NoneType":
        return m
    if kind == "DenseMap":
        return m + read_map.change[head] @ m
    if kind == "PlaneMap":
        frame = torch.linalg.qr(read_map.basis[head])[0]
        return reference.planes(torch.exp(read_map.log_stretch[head]) * m, frame, read_map.angles[head])
    stretch, turn = read_map.stretch[head], read_map.turn[head] - read_map.turn[head].T
    stretched = exponential((stretch + stretch.T) / 2) @ m
    if read_map.kind == "expm":
        return exponential(turn) @ stretched
    unit = torch.eye(len(turn), dtype=turn.dtype)
    return torch.linalg.inv(unit - turn / 2) @ (unit + turn / 2) @ stretched
