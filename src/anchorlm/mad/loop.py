"""One small model learns one task from scratch, and is tested on rows it has not seen.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..convert.calibrate import calibrate
from ..data.mad import IGNORE, Instances, Task
from ..train.errors import TrainingError
from ..train.stages import rate_factor
from .learner import Learner
from .table import Training

WATCHED = 20  # steps whose training accuracy decides whether a model is done


@dataclass
class Curve:
    """Loss and training accuracy of every step."""

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)


def learn(learner: Learner, task: Task, training: Training, rng: np.random.Generator) -> Curve:
    """Train every weight in place; `rng` draws the rows, a batch a step whatever the model.

    Raises TrainingError when a loss is not finite.
    """
    device, stage, curve = _device(learner), training.stage(), Curve()
    optimizer = _optimizer(learner, training)
    for step in range(training.steps):
        made = task.make(rng, training.batch)
        if not step and training.calibrate and learner.model.plan.slots:
            calibrate(learner.model, _tensors(made, device)[0])
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * rate_factor(stage, step)
        loss, accuracy = _step(learner, made, optimizer, training)
        if not math.isfinite(loss):
            raise TrainingError(f"step {step + 1}: the loss is {loss}; try a smaller training.lr")
        curve.loss.append(loss)
        curve.accuracy.append(accuracy)
        recent = curve.accuracy[-WATCHED:]
        if len(recent) == WATCHED and sum(recent) >= WATCHED * training.enough:
            break
    return curve


@torch.no_grad()
def score(learner: Learner, task: Task, rows: int, batch: int, rng: np.random.Generator) -> tuple[int, int]:
    """(right, all) scored tokens of so many test rows."""
    made, right, total = task.make(rng, rows, train=False), 0, 0
    for begin in range(0, rows, batch):
        part = Instances(*(array[begin : begin + batch] for array in made))
        ids, _, answers = _tensors(part, _device(learner))
        hits, asked = _hits(learner(ids), answers)
        right, total = right + hits, total + asked
    return right, total


def _step(
    learner: Learner, made: Instances, optimizer: torch.optim.Optimizer, training: Training
) -> tuple[float, float]:
    """One optimizer step: its loss, and the share of scored tokens that were right before it."""
    ids, targets, answers = _tensors(made, _device(learner))
    wanted = targets if training.targets == "published" else answers
    logits = learner(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORE)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learner.parameters(), training.clip or math.inf)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    right, total = _hits(logits.detach(), answers)
    return float(loss.detach()), right / total


def _hits(logits: Tensor, answers: Tensor) -> tuple[int, int]:
    asked = answers != IGNORE
    return int(((logits.argmax(-1) == answers) & asked).sum()), int(asked.sum())


def _optimizer(learner: Learner, training: Training) -> torch.optim.AdamW:
    """Memory at its own rate and without decay: what its weights mean has no neutral zero."""
    memory = learner.model.memory_parameters()
    own = {id(parameter) for parameter in memory.values()}
    rest = [parameter for parameter in learner.parameters() if id(parameter) not in own]
    groups = [
        ([p for p in rest if p.dim() > 1], training.lr, training.weight_decay),
        ([p for p in rest if p.dim() < 2], training.lr, 0.0),
        (list(memory.values()), training.lr * training.memory_lr_multiplier, 0.0),
    ]
    made = [{"params": p, "peak": peak, "weight_decay": decay} for p, peak, decay in groups if p]
    return torch.optim.AdamW(made, lr=training.lr, betas=(0.9, 0.95))


def _tensors(made: Instances, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    inputs, targets, answers = (torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in made)
    return inputs, targets, answers


def _device(learner: Learner) -> torch.device:
    return next(learner.parameters()).device
