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
        return see(layer, name, reader.answers(trace.runs(), q, trace, positions, rotary))
    answer, mass = reader.answers(*given[1:])
    assert mass is not None
    see(layer, name, torch.where(mass > UNSEEN / 2, answer, answer.new_zeros(())))


@contextmanager
def window_unseen(model: Any, layers: Iterable[int]) -> Iterator[None]:
    """Inside the block exact tokens are read in these layers as if window and sinks held nothing: all the attention
    goes to them, and none where none is seen. Layers without such a reader are left alone: a plan can say it."""
    with ExitStack() as hooks:
        for index in layers:
            for reader in model.backbone.model.layers[index].self_attn.readers.values():
                if isinstance(reader, JointReader):
                    hooks.callback(reader.register_forward_pre_hook(_without_window).remove)
        yield


def _without_window(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The mass stays above that of a query that sees no kept token, so that such a query gets zero."""
    answer, mass = given[0]
    return (Partial(torch.zeros_like(answer), torch.full_like(mass, UNSEEN / 10)), *given[1:])
