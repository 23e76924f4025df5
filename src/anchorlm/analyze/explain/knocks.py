"""One branch of one layer taken away, and noise of the same norm instead: the runs behind the knock-out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anchorlm.hf import AnchorForCausalLM
from anchorlm.hf.branches import window_unseen
from anchorlm.hf.layers import attention_as, run_layers
from anchorlm.memory.trace import Trace
from anchorlm.plan import Plan, Reach

from ..bench import Sums, probe_sums
from ..probes import Probe

MEMORY, WINDOW, SLOT = "memory", "window", "slot"


@dataclass(frozen=True)
class Knock:
    """What is taken away, as a plan for the same weights, which differs from the model's own from `layer` on.

    branch: "memory", the layer no longer reads `slots`, which are written as before; "window", its attention gives
    nothing; "slot", the slot is neither written nor read. unseen: the window is left out while exact tokens are read.
    """

    branch: str
    layer: int
    slots: tuple[str, ...]
    plan: Plan
    unseen: bool = False


def knocks(plan: Plan, layers: list[int]) -> list[Knock]:
    """Every branch of these layers, and every slot that several layers read if one of these does."""
    shared = [name for name, slot in plan.slots.items() if len(slot.read) > 1 and set(slot.read) & set(layers)]
    return [
        *(_memory(plan, layer) for layer in layers if plan.reads(layer)),
        *(Knock(SLOT, plan.slots[name].write, (name,), _only(plan, name)) for name in shared),
        *(_window(plan, layer) for layer in layers if plan.layers[layer].kind != "none"),
    ]


def _memory(plan: Plan, layer: int) -> Knock:
    """A slot that nobody else reads is left out whole."""
    names = plan.reads(layer)
    slots = {
        name: replace(slot, read=tuple(reader for reader in slot.read if reader != layer))
        for name, slot in plan.slots.items()
    }
    kept = {name: slot for name, slot in slots.items() if slot.read}
    return Knock(MEMORY, layer, tuple(names), replace(plan, slots=kept))


def _only(plan: Plan, gone: str) -> Plan:
    return plan.select_slots([name for name in plan.slots if name != gone])


def _window(plan: Plan, layer: int) -> Knock:
    """A layer that reads what lies beyond its window keeps its reach, which says where that begins."""
    names = tuple(plan.reads(layer))
    if any(plan.slots[name].rule_options.joint or plan.slots[name].lag == "evicted" for name in names):
        return Knock(WINDOW, layer, names, plan, unseen=True)
    layers = tuple(Reach("none") if index == layer else reach for index, reach in enumerate(plan.layers))
    return Knock(WINDOW, layer, names, replace(plan, layers=layers))


class Intact:
    """One probe through the untouched model, computed when first asked for, and then with a branch less.

    entering, attended: layer -> [1, T, D] what enters it, [1, T, Hq d] what its attention gives.
    """

    def __init__(self, model: AnchorForCausalLM, probe: Probe):
        self.model, self.probe = model, probe

    @cached_property
    def _run(self) -> tuple[Tensor, dict[int, Tensor], dict[int, Tensor], dict[str, Trace]]:
        entering, attended, traces = {}, {}, {}
        ids = torch.from_numpy(self.probe.ids)[None].to(next(self.model.parameters()).device)
        x = self.model.get_input_embeddings()(ids)
        hidden = run_layers(self.model, x, self.model.plan, record=entering, attended=attended, traces=traces)
        return hidden, entering, attended, traces

    @torch.inference_mode()
    def sums(self) -> Sums:
        return probe_sums(self.model, self._run[0], self.probe)

    @torch.inference_mode()
    def without(self, knock: Knock) -> tuple[Sums, Tensor]:
        """Sums without the branch, and at its layer the norm of what it gave, [T]."""
        _, entering, attended, traces = self._run
        found: dict[int, Tensor] = {}
        with window_unseen(self.model, [knock.layer] if knock.unseen else []):
            hidden = run_layers(
                self.model, entering[knock.layer], knock.plan, knock.layer, attended=found, traces=dict(traces)
            )
        gone = (attended[knock.layer] - found[knock.layer])[0].float().norm(dim=-1)
        return probe_sums(self.model, hidden, self.probe), gone

    @torch.inference_mode()
    def with_noise(self, layer: int, norms: Tensor, seed: int) -> Sums:
        """Sums when the layer's attention has, at each token, noise of this norm added: norms [T]."""
        _, entering, _, traces = self._run
        generator = torch.Generator().manual_seed((seed * 1009 + layer) ^ int(self.probe.digest[:8], 16))

        def disturbed(_: Tensor, own: Tensor) -> Tensor:
            noise = torch.randn(own.shape, generator=generator).to(own.device)
            return own + (noise * (norms[:, None] / noise.norm(dim=-1, keepdim=True))).to(own.dtype)

        with attention_as(self.model, {layer: disturbed}):
            hidden = run_layers(self.model, entering[layer], self.model.plan, layer, traces=dict(traces))
        return probe_sums(self.model, hidden, self.probe)


def measured(intact: Intact, knock: Knock, control: bool, seed: int) -> dict[str, Any]:
    """JSON-able sums of one probe: `without` the branch, and, of a single layer's branch, with `noise` instead."""
    sums, norms = intact.without(knock)
    noise = None
    if control and knock.branch != SLOT:
        noise = intact.with_noise(knock.layer, norms, seed) if bool(norms.any()) else intact.sums()
    return {"without": sums, "noise": noise}
