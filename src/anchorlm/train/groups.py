"""What trains: the trainable set of a stage, its parameter groups, and the table that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from ..core import UserError
from ..settings import StageSettings


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and a weight decay."""

    name: str
    parameters: dict[str, nn.Parameter]
    lr: float
    weight_decay: float

    @property
    def count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters.values())


def make_groups(
    memory: Mapping[str, nn.Parameter], lora: Mapping[str, nn.Parameter], stage: StageSettings
) -> list[Group]:
    """Groups for AdamW: memory at its multiple of the learning rate, LoRA at the rate itself.

    Weight decay is for LoRA alone. Initial fast weights, gates, scales and read maps would be pulled away from the
    values that mean "nothing changed".
    """
    memory_lr = stage.lr * stage.memory_lr_multiplier
    readers = {name: p for name, p in memory.items() if ".readers." in name}
    writers = {name: p for name, p in memory.items() if name not in readers}
    groups = [
        Group("slots (writers)", writers, memory_lr, 0.0),
        *_reader_groups(readers, stage),
        Group("LoRA", dict(lora), stage.lr, stage.weight_decay),
    ]
    return [group for group in groups if group.parameters]


def _reader_groups(readers: dict[str, nn.Parameter], stage: StageSettings) -> list[Group]:
    """Gates and maps apart where the stage gives them a learning rate of their own; the rest goes with the slots."""
    own = (("gates", ".gate_", stage.gate_lr_multiplier), ("read maps", ".map.", stage.map_lr_multiplier))
    groups, rest = [], dict(readers)
    for label, part, multiplier in own:
        if multiplier is not None:
            chosen = {name: p for name, p in rest.items() if part in name}
            rest = {name: p for name, p in rest.items() if name not in chosen}
            groups.append(Group(label, chosen, stage.lr * multiplier, 0.0))
    label = "readers" if groups else "gates and maps (readers)"
    return [Group(label, rest, stage.lr * stage.memory_lr_multiplier, 0.0), *groups]


def freeze_all_but(model: nn.Module, groups: list[Group], stage: str) -> None:
    """Leave gradients to the groups' parameters alone. Raises UserError when that set is empty."""
    trained = {id(p) for group in groups for p in group.parameters.values()}
    if not trained:
        raise nothing_to_train(stage)
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)


def nothing_to_train(stage: str) -> UserError:
    return UserError(
        f"{stage} has nothing to train: no slot of the plan has weights; set {stage}.steps=0 or use another plan"
    )


def trainable_names(model: nn.Module) -> list[str]:
    """Sorted names of the parameters that take gradients."""
    return sorted(name for name, parameter in model.named_parameters() if parameter.requires_grad)
