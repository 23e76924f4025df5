"""Some of a model's layers run by themselves, on hidden states that are known, and with attention of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ..memory.trace import Trace
from ..nn.attention import LayerCall, Step
from ..ops.rows import Span
from ..plan import Plan
from ..state import ModelState

Attended = Callable[[Tensor, Tensor], Tensor]


def run_layer(
    layer: nn.Module, x: Tensor, step: Step, index: int, state: ModelState, traces: dict[str, Trace]
) -> tuple[Tensor, LayerCall]:
    """One decoder layer on values; a second run of it, for recomputation, changes nothing outside."""
    call = LayerCall(step, index, state.attention[index], state.slots, dict(traces))
    return layer(x, call=call), call


def run_layers(
    model: Any,
    x: Tensor,
    plan: Plan,
    first: int = 0,
    last: int | None = None,
    record: dict[int, Tensor] | None = None,
    attended: dict[int, Tensor] | None = None,
    traces: dict[str, Trace] | None = None,
) -> Tensor:
    """Layers first .. last - 1 on x [B, T, D], the hidden states that enter layer `first` of whole texts without holes.

    Returns what enters layer `last`; with last None all layers run and the final norm follows. `record` receives what
    enters each layer (and, under the number of layers, what leaves the last), `attended` each layer's attention output
    before its output projection [B, T, Hq d]. `traces` holds the slots that layers below `first` wrote in an earlier
    run, and receives those written now. Raises ValueError when a slot is read whose trace is not there.
    """
    traces = {} if traces is None else traces
    layers = model.backbone.model.layers
    end = len(layers) if last is None else last
    _check_traces(plan, first, end, traces)
    span = Span((0,) * x.shape[0], (x.shape[1],) * x.shape[0], x.shape[1])
    step, state = model.step(x, span, plan, False), ModelState.empty(x.shape[0], len(layers), x.device)
    for index in range(first, end):
        if record is not None:
            record[index] = x
        x, call = run_layer(layers[index], x, step, index, state, traces)
        traces.update(call.new_traces)
        if attended is not None and call.captured is not None:
            attended[index] = call.captured
    if last is not None:
        return x
    if record is not None:
        record[len(layers)] = x
    return model.backbone.model.norm(x)


def _check_traces(plan: Plan, first: int, end: int, traces: Mapping[str, Trace]) -> None:
    for name, slot in plan.slots.items():
        readers = [layer for layer in slot.read if first <= layer < end]
        if slot.write < first and readers and name not in traces:
            raise ValueError(
                f"layer {readers[0]} reads slot {name!r}, which layer {slot.write} wrote; give its trace in `traces`"
            )


@contextmanager
def attention_as(model: Any, functions: Mapping[int, Attended]) -> Iterator[None]:
    """Inside the block the named layers' attention output is f(x, own): x [B, T, D] the layer's normalised input, own
    [B, T, Hq d] what its attention gave; the output projection follows."""
    with ExitStack() as hooks:
        for index, function in functions.items():
            for hook in _replace(model.backbone.model.layers[index].self_attn, function):
                hooks.callback(hook.remove)
        yield


def _replace(attention: Any, function: Attended) -> list[Any]:
    seen: list[Tensor] = []

    def before(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        seen[:] = [named["hidden_states"] if "hidden_states" in named else given[0]]

    def instead(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (function(seen[0], given[0]),)

    watch = attention.register_forward_pre_hook(before, with_kwargs=True)
    return [watch, attention.o_proj.register_forward_pre_hook(instead)]
