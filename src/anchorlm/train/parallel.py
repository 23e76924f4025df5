"""One run over several processes: who this one is, sums over all of them, and frozen layers shared out among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..convert.attach import count_writes
from ..convert.save import refuse_changed
from ..core import UserError
from ..settings import Recipe

Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """This process among those of the run. With one process every method hands back what it is given."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same to the bit in each."""
        if self.size == 1:
            return values
        values = values.detach().clone()
        dist.all_reduce(values)
        return values

    def share(self, compute: Callable[[], Value]) -> Value:
        """What `compute` gives, or raises, in the first process; the others do not call it."""
        if self.size == 1:
            return compute()
        told: list[Any] = [None, None]
        if self.first:
            try:
                told[0] = compute()
            except Exception as error:
                told[1] = error
        dist.broadcast_object_list(told)
        if told[1] is not None:
            raise told[1]
        return told[0]

    def wait(self) -> None:
        """Go on only when every process has come here."""
        if self.size > 1:
            dist.barrier()

    def add_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Give every process the sum of all processes' gradients. What got a gradient nowhere keeps none."""
        if self.size == 1:
            return
        some = next(iter(parameters.values()))
        found = [float(p.grad is not None) for p in parameters.values()]
        anywhere = self.sum(torch.tensor(found, device=some.device)).bool().tolist()
        used = [p for p, present in zip(parameters.values(), anywhere, strict=True) if present]
        for dtype in sorted({p.dtype for p in used}, key=str):
            self._add(dtype, [p for p in used if p.dtype == dtype])

    def _add(self, dtype: torch.dtype, parameters: list[nn.Parameter]) -> None:
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)


ALONE = World()


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The processes that torchrun or `accelerate launch` started, or this one alone.

    A process group that stands already is used and left standing.
    """
    if dist.is_available() and dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size())
    elif int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
    else:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        try:
            yield World(dist.get_rank(), dist.get_world_size())
        finally:
            dist.destroy_process_group()


def check_shard(recipe: Recipe, terms: Mapping[str, list[str]], world: World) -> None:
    """Raise UserError for what cannot run on sharded layers. terms: names of the losses of each stage."""
    if not recipe.shard:
        return
    if world.size == 1:
        raise UserError("recipe shard is true but there is one process; start with torchrun or accelerate launch")
    if recipe.stage1.steps and recipe.stage1.mse_inputs == "teacher" and recipe.stage1.w_mse:
        raise UserError("recipe shard is true and stage1.mse_inputs is 'teacher'; sharded layers need 'student'")
    for name, found in terms.items():
        if used := sorted({"keep", "maps"} & set(found)):
            raise UserError(f"recipe shard is true and {name}.w_{used[0]} is in use; set it to 0 or shard to false")
        if getattr(recipe, name).window_dropout and recipe.data.batch > 1:
            raise UserError(f"recipe shard is true and {name}.window_dropout is in use; it needs data.batch=1")


def shard(model: Any, world: World) -> None:
    """Share out the frozen weights of the decoder layers; what trains, embeddings and the head stay whole.

    Each layer's weights are gathered when it runs, and again on the way back.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if model.config.base:
        refuse_changed(model)  # after the weights were shared out nobody could tell
    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (world.size,))
    kept = set(model.memory_parameters().values()) | {p for n, p in model.named_parameters() if ".lora_" in n}
    for layer in model.backbone.model.layers:
        fully_shard(layer, mesh=mesh, ignored_params={p for p in layer.parameters() if p in kept})


def gather(model: Any) -> None:
    """Put whole weights back in every process, so that the model can be saved; it is not to be run afterwards."""
    for layer in model.backbone.model.layers:
        layer.reshard()
        for module in layer.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if hasattr(parameter, "full_tensor"):
                    setattr(module, name, nn.Parameter(parameter.full_tensor(), requires_grad=False))
    count_writes(model)
