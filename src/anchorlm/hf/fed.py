"""Attention outputs of layers that are each fed a given input, so that no layer sees another one's error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from ..memory.trace import Trace
from ..nn.attention import LayerCall, Step
from ..ops.rows import Span, arrange
from ..plan import Plan
from .inputs import check_plan


def fed_outputs(
    model: Any,
    inputs: Mapping[int, Tensor],
    mask: Tensor | None = None,
    document_starts: Tensor | None = None,
    plan: Plan | None = None,
    checkpoint: bool = False,
) -> dict[int, Tensor]:
    """layer -> attention output before its output projection [B, T, Hq d], for every layer in `inputs`.

    inputs: layer -> [B, T, D], that layer's normalised input. A slot's writer must be among them if a reader is.
    The other arguments as in `model.hidden`, from an empty state.
    """
    plan = model.plan if plan is None else check_plan(plan, model.plan)
    rows = arrange(mask, document_starts)
    some = next(iter(inputs.values()))
    if rows is None:
        return _attend(model, inputs, (some.shape[1],) * some.shape[0], plan, checkpoint)
    given = {index: rows.gather(x) for index, x in inputs.items()}
    outputs = _attend(model, given, rows.length, plan, checkpoint)
    return {index: rows.scatter(output) for index, output in outputs.items()}


def _attend(
    model: Any, inputs: Mapping[int, Tensor], lengths: tuple[int, ...], plan: Plan, checkpoint: bool
) -> dict[int, Tensor]:
    some = next(iter(inputs.values()))
    step = model.step(some, Span((0,) * len(lengths), lengths, some.shape[1]), plan, checkpoint)
    outputs, traces = {}, {}
    for index in sorted(inputs):
        attention = model.backbone.model.layers[index].self_attn
        if checkpoint and torch.is_grad_enabled():
            call = recompute(_layer, attention, inputs[index], step, index, traces, use_reentrant=False)
        else:
            call = _layer(attention, inputs[index], step, index, traces)
        traces |= call.new_traces
        outputs[index] = call.captured
    return outputs


def _layer(attention: nn.Module, x: Tensor, step: Step, index: int, traces: dict[str, Trace]) -> LayerCall:
    call = LayerCall(step, index, {}, {}, dict(traces))
    attention(x, call=call)
    return call
