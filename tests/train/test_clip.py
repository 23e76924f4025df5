"""Gradients are clipped group by group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anchorlm.settings import StageSettings
from anchorlm.train.groups import Group
from anchorlm.train.loop import _clip
from anchorlm.train.stages import Stage


def stage(clip: float, **gradients: float) -> Stage:
    groups = []
    for name, gradient in gradients.items():
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.tensor([gradient])
        groups.append(Group(name, {name: parameter}, 1.0, 0.0))
    return Stage("stage2", StageSettings(clip=clip), groups, (), False)


@pytest.mark.parametrize("spike", [0.5, 30.0, 1e6])
def test_a_group_that_spikes_leaves_the_others_alone(spike: float) -> None:
    given = stage(1.0, slots=spike, lora=0.25)
    assert _clip(given) == {"slots": spike, "lora": 0.25}
    assert float(given.parameters["lora"].grad) == 0.25
    assert float(given.parameters["slots"].grad) == pytest.approx(min(spike, 1.0), rel=1e-5)


def test_zero_does_not_clip() -> None:
    given = stage(0.0, slots=30.0)
    assert _clip(given) == {"slots": 30.0}
    assert float(given.parameters["slots"].grad) == 30.0
