"""Fast weights that learn from each chunk by one step of gradient descent, whatever network they are."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from ..ops.wide import widen
from ..rules import TrainedOptions
from .base import Memory, StepSize, Weights, affine

FORGET_BIAS = -6.0  # a share of 0.25 % a chunk at the start


class TrainedMemory(Memory):
    """A network per state head, written a chunk at a time: U_c is a step down the gradient of an inner loss,

        S_c = eta_c S_{c-1} + U_c        W_c = (1 - alpha_c) W_{c-1} + S_c

    with learned step sizes of every token in U_c, and eta and alpha the means of what the chunk's tokens vote; eta is 0
    without `momentum`, alpha without `decay` (Titans, arXiv 2501.00663). With `group` above 1 the gradients of that
    many chunks are taken at the weights that held when the first of them began; both recurrences go on chunk by chunk.
    """

    names: tuple[str, ...] = ()  # of the matrices

    def __init__(self, options: TrainedOptions, heads: int, hidden: int):
        super().__init__()
        self.options, self.heads = options, heads
        self.steps = StepSize(hidden, options.steps * heads, options.step)
        for name in self._shares():
            self.register_parameter(f"{name}_weight", nn.Parameter(torch.zeros(heads, hidden)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(heads)))

    def _shares(self) -> dict[str, float]:
        """The learned shares in (0, 1) that a token votes on, and their biases at the start."""
        options = self.options
        return ({"carry": 0.0} if options.momentum else {}) | ({"forget": FORGET_BIAS} if options.decay else {})

    def reset_parameters(self) -> None:
        self.steps.reset_parameters()
        for name, bias in self._shares().items():
            nn.init.zeros_(getattr(self, f"{name}_weight"))
            nn.init.constant_(getattr(self, f"{name}_bias"), bias)

    def first(self, name: str) -> Tensor:
        """The matrix `name` of a text of which nothing was written: [H, n, m]."""
        return getattr(self, name)

    def descent(self, weights: Weights, k: Tensor, v: Tensor, steps: Tensor) -> Weights:
        """U_c at these weights, by name. k, v: [B, H, C, d]; steps: [B, n, H, C, 1], the step sizes of each token."""
        raise NotImplementedError

    def shaped(self, name: str, update: Tensor) -> Tensor:
        """The update as it is added to the matrix `name`."""
        return update

    def settled(self, name: str, weight: Tensor) -> Tensor:
        """The matrix `name` as it is carried on."""
        return weight

    def weights(self, state: Weights) -> Weights:
        """The network that a state stands for."""
        return {name: state[name] for name in self.names}

    def tokens(self, x: Tensor, k: Tensor | None = None) -> Weights:
        extra = {"steps": self.steps(x)}
        for name in self._shares():
            weight, bias = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
            extra[name] = torch.sigmoid(affine(x, weight, bias))
        return extra

    def start(self, rows: int, like: Tensor | None = None) -> Weights:
        state = {name: widen(self.first(name)).expand(rows, -1, -1, -1) for name in self.names}
        if self.options.momentum:
            state |= {f"momentum.{name}": torch.zeros_like(state[name]) for name in self.names}
        if self.options.group > 1:
            state |= {f"group.{name}": state[name] for name in self.names}
            state["phase"] = state[self.names[0]].new_zeros(rows, self.heads, 1, 1)
        return state

    def write(self, state: Weights, k: Tensor, v: Tensor, extra: Weights) -> Weights:
        steps = extra["steps"].transpose(1, 2).unflatten(1, (-1, self.heads)).unsqueeze(-1)
        begun, written = self._group(state)
        for name, update in self.descent(self.weights(begun), k, v, steps).items():
            if self.options.momentum:
                carry = extra["carry"].mean(1)[..., None, None]
                update = update + carry * state[f"momentum.{name}"]
                written[f"momentum.{name}"] = update
            old = state[name]
            if self.options.decay:
                old = old * (1 - extra["forget"].mean(1)[..., None, None])
            written[name] = self.settled(name, old + self.shaped(name, update))
        return written

    def _group(self, state: Weights) -> tuple[Weights, Weights]:
        """The weights at which the gradient is taken, and what the state carries about the group after this chunk.

        "phase" counts the chunks of the group so far, by itself, since the rows of a batch may differ in it.
        """
        if self.options.group == 1:
            return state, {}
        first = state["phase"] == 0
        begun = {name: torch.where(first, state[name], state[f"group.{name}"]) for name in self.names}
        carried = {f"group.{name}": value for name, value in begun.items()}
        return begun, carried | {"phase": (state["phase"] + 1) % self.options.group}

    def readable(self, state: Weights) -> Weights:
        return self.weights(state)
