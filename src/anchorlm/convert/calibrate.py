"""Start a memory where it can learn: features of unit variance, and a step that changes the state a little per chunk.

Pretrained keys share a large common part. A memory fed with them as they are stores that part over and over, and an
early chunk cannot be told apart 16 chunks later; with centred, scaled keys it can (`docs/memory.md` has the figures).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..core import UserError
from ..memory.base import inverse_softplus
from ..memory.features import Features
from ..memory.slot import SlotWriter
from ..nn.attention import HybridAttention
from ..ops.rows import Span
from ..rules import FastWeightOptions, TrainedOptions
from ..state import SlotState

TARGET = 0.07  # median length of a chunk's update over the length of the weights
ROUNDS = 6


@torch.no_grad()
def calibrate(model: Any, input_ids: Tensor) -> dict[str, float]:
    """Set features, value scales and step sizes of every slot of fast weights from a text, input_ids [B, T].

    Returns each slot's step size. Changes only parameters of slots and readers; the branch stays silent.
    Raises UserError when the text is shorter than two chunks of a slot.
    """
    slots = {name: slot for name, slot in model.plan.slots.items() if isinstance(slot.rule_options, FastWeightOptions)}
    for name, slot in slots.items():
        if input_ids.shape[1] < 2 * slot.delay:
            least = 2 * slot.delay
            raise UserError(f"slots.{name} needs {least} tokens to calibrate; got {input_ids.shape[1]}")
    inputs = layer_inputs(model, input_ids)
    layers = [layer.self_attn for layer in model.backbone.model.layers]
    found = {}
    for name, slot in slots.items():
        attention = layers[slot.write]
        spread = _set_writer(attention, attention.writers[name], inputs[slot.write])
        for layer in slot.read:
            _set_reader(layers[layer], layers[layer].readers[name].queries, inputs[layer], spread)
        found[name] = _set_step(model, attention, attention.writers[name], inputs[slot.write])
    return found


def untouched(model: Any) -> bool:
    """Whether the model has slots and no gate was ever opened; a trained memory must not be fitted anew."""
    gates = [p for name, p in model.memory_parameters().items() if name.endswith("gate_weight")]
    return bool(gates) and not any(bool(gate.any()) for gate in gates)


def layer_inputs(model: Any, input_ids: Tensor) -> dict[int, Tensor]:
    """Normalised inputs of every attention layer, [B T, D], under the model's own window."""
    found: dict[int, Tensor] = {}
    layers = list(enumerate(layer.self_attn for layer in model.backbone.model.layers))
    hooks = [
        module.register_forward_pre_hook(
            lambda _, args, kwargs, i=i: found.__setitem__(i, kwargs["hidden_states"]), with_kwargs=True
        )
        for i, module in layers
    ]
    try:
        model.hidden(input_ids, plan=model.plan.without_slots(), block=input_ids.shape[1])
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _set_writer(attention: HybridAttention, writer: SlotWriter, x: Tensor) -> Tensor:
    """Centre and scale the keys, scale the values; returns the keys' spread [H, 1, d].

    Values keep their size where nothing normalises the answers: these must be of the size of attention's.
    """
    _, k, v = attention.project(x)
    repeats = writer.heads // k.shape[1]
    mean, spread = _moments(k.repeat_interleave(repeats, 1))
    _set(writer.keys, mean, spread, 1 / spread)
    if writer.slot.norm:
        rms = v.float().square().mean((0, 2, 3)).sqrt().clamp(min=1e-6).repeat_interleave(repeats)
        writer.value_scale.copy_((1 / rms)[:, None, None])
    return spread


def _set_reader(attention: HybridAttention, queries: Features, x: Tensor, spread: Tensor) -> None:
    """Queries in the space of the scaled keys: times the keys' spread, so that products are kept, and centred."""
    q, _, _ = attention.project(x)
    mean, _ = _moments(q)
    _set(queries, mean, spread.repeat_interleave(q.shape[1] // spread.shape[0], 0), None)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [H, 1, d] over rows and tokens of x [B, H, T, d]."""
    flat = x.float().transpose(0, 1).flatten(1, 2)
    return flat.mean(1, keepdim=True), flat.std(1, keepdim=True).clamp(min=1e-4)


def _set(features: Features, mean: Tensor, spread: Tensor, scale: Tensor | None) -> None:
    factor = spread if scale is None else scale
    factor = factor / factor.square().mean(-1, keepdim=True).sqrt()  # the length is set later; keep numbers near 1
    features.scale.copy_(factor)
    features.offset.copy_(-mean * factor)


def _set_step(model: Any, attention: HybridAttention, writer: SlotWriter, x: Tensor) -> float:
    """Scale the slot's step until a chunk changes the weights by about TARGET; other rules, and Muon, keep theirs."""
    options, step = writer.slot.rule_options, float(writer.slot.rule_options.step)
    if not isinstance(options, TrainedOptions) or getattr(options, "muon", False):
        return step
    for _ in range(ROUNDS):
        writer.memory.steps.bias.fill_(inverse_softplus(step))
        change = _median_change(model, attention, writer, x)
        step *= min(4.0, max(0.25, TARGET / max(1e-9, change)))
    writer.memory.steps.bias.fill_(inverse_softplus(step))
    return step


def _median_change(model: Any, attention: HybridAttention, writer: SlotWriter, x: Tensor) -> float:
    """Median over chunks of the largest relative change of one of the matrices."""
    _, k, v = attention.project(x)
    span = Span((0,) * x.shape[0], (x.shape[1],) * x.shape[0], x.shape[1])
    rotary = partial(model.backbone.model.rotary_emb, x)
    trace, _ = writer(x, k.transpose(1, 2), v.transpose(1, 2), SlotState(), span, rotary)
    changes = [
        max(float((after[name] - before[name]).norm() / before[name].norm()) for name in before)
        for before, after in pairwise(trace.states)
    ]
    return median(changes)
