"""The two branches of a hybrid layer seen apart: what readers are answered, and memory without the window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.joint import JointReader
from ..ops.kept import UNSEEN
from ..ops.partials import Partial

See = Callable[[int, str, Tensor], None]


@contextmanager
def answers_seen(model: Any, see: See) -> Iterator[None]:
    """Inside the block `see(layer, slot, answers)` gets what each reader is answered, before map and gate.

    answers: [B, Hq, T, d] of one call; zero where a silent slot holds nothing, and where no kept token is seen.
    """
    with ExitStack() as hooks:
        for index, layer in enumerate(model.backbone.model.layers):
            for name, reader in layer.self_attn.readers.items():
                hooks.callback(reader.register_forward_hook(partial(_tell, see, index, name)).remove)
        yield


def _tell(see: See, layer: int, name: str, reader: Any, given: tuple[Any, ...], _: Any) -> None:
    if not isinstance(reader, JointReader):
        _attended, _x, q, trace, positions, rotary = given
        found, written = reader.answers(q, trace, positions, rotary).answer, trace.written(q.device)
        if reader.slot.silent and written is not None:
            found = torch.where(written[:, None, :, None], found, found.new_zeros(()))
        return see(layer, name, found)
    kept = reader.answers(*given[1:])
    assert kept.peak is not None
    see(layer, name, torch.where(kept.peak > UNSEEN / 2, kept.answer, kept.summed.new_zeros(())))


@contextmanager
def window_unseen(model: Any, layers: Iterable[int]) -> Iterator[None]:
    """Inside the block what was kept of, or left, the window is read as if window and sinks held nothing: all attention
    goes to them, and none where none is seen. Layers without such a reader are left alone: a plan can say it."""
    with ExitStack() as hooks:
        for index in layers:
            for reader in model.backbone.model.layers[index].self_attn.readers.values():
                if isinstance(reader, JointReader) or reader.slot.lag == "evicted":
                    hooks.callback(reader.register_forward_pre_hook(_without_window).remove)
        yield


def _without_window(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The peak stays above that of a query that sees no kept token, so that such a query gets zero."""
    attended: Partial = given[0]
    if attended.mass is None or attended.peak is None:
        return (Partial(torch.zeros_like(attended.summed)), *given[1:])
    mass = torch.zeros_like(attended.mass)
    return (Partial(torch.zeros_like(attended.summed), mass, torch.full_like(mass, UNSEEN / 10)), *given[1:])
