"""One trial on one probe: the layers below the first changed one are not run again, and nothing is measured twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from anchorlm.eval.parts import Parts
from anchorlm.hf import AnchorForCausalLM
from anchorlm.hf.layers import attention_as, run_layers
from anchorlm.plan import Plan, Reach

from . import oracle
from .probes import Probe

SLICE = 128  # targets whose logits are held at once

Sums = dict[str, list[float]]  # group -> [sum of nats (or of exact answers), number of targets]


@dataclass(frozen=True)
class Trial:
    """The weights of the model under `plan`. first: the lowest layer that differs from the plan it is compared with.

    head: the KV head of layer `first` that the trial is about. kept: every layer in `layers` also sees so many
    tokens beyond its window for each KV head, those that the teacher's later queries attend to most. counts: the same
    where layers differ, of each layer in `layers`.
    """

    stage: str
    layers: tuple[int, ...]
    plan: Plan
    first: int
    head: int | None = None
    kept: int = 0
    counts: tuple[int, ...] = ()

    @property
    def tokens(self) -> dict[int, int]:
        """Layer -> tokens that it sees beyond its window."""
        counts = self.counts or (self.kept,) * len(self.layers)
        return {layer: count for layer, count in zip(self.layers, counts, strict=True) if count}

    @property
    def name(self) -> str:
        """`layer 18`, `pair 18+23`, `head 18.2`."""
        where = "+".join(map(str, self.layers)) + ("" if self.head is None else f".{self.head}")
        return f"{self.stage} {where}".strip()

    def key(self) -> dict[str, Any]:
        """All that fixes the figures, beside model and probe."""
        layers = list(self.layers) if self.tokens else None
        return {"plan": self.plan.to_dict(), "kept": list(self.counts) or self.kept, "layers": layers}


class Prefix:
    """Hidden states that enter each layer of one probe under one plan, computed when first asked for."""

    def __init__(self, model: AnchorForCausalLM, plan: Plan, probe: Probe):
        self.model, self.plan, self.probe = model, plan, probe

    @cached_property
    def entering(self) -> dict[int, Tensor]:
        """Layer -> [1, T, D]; under the number of layers, what leaves the last."""
        found: dict[int, Tensor] = {}
        ids = torch.from_numpy(self.probe.ids)[None].to(next(self.model.parameters()).device)
        with torch.inference_mode():
            run_layers(self.model, self.model.get_input_embeddings()(ids), self.plan, record=found)
        return found


class Bench:
    """Measures trials of a model; `spent` counts those that were computed and not found in `parts`."""

    def __init__(self, model: AnchorForCausalLM, key: dict[str, Any], window: Reach, parts: Parts):
        self.model, self.fixed, self.window, self.parts = model, key, window, parts
        self.spent = 0
        self.depth = len(model.plan.layers)

    def plan(self, changed: Iterable[int], *, inside: Reach, outside: Reach) -> Plan:
        """`inside` for the named layers, `outside` for all others."""
        chosen = set(changed)
        return Plan(tuple(inside if i in chosen else outside for i in range(self.depth)))

    @cached_property
    def full(self) -> Plan:
        return self.plan((), inside=Reach(), outside=Reach())

    @cached_property
    def windowed(self) -> Plan:
        return self.plan((), inside=self.window, outside=self.window)

    def measure(self, trial: Trial, probe: Probe, prefix: Prefix, teacher: Prefix) -> Sums:
        """Sums of one probe by group; `prefix` holds the plan that the trial is compared with."""

        def compute() -> Sums:
            self.spent += 1
            with torch.inference_mode():
                return probe_sums(self.model, self._hidden(trial, prefix, teacher), probe)

        return self.parts.run(self.fixed | trial.key() | {"probe": probe.digest}, compute)

    def _hidden(self, trial: Trial, prefix: Prefix, teacher: Prefix) -> Tensor:
        """[1, T, D] after the final norm."""
        tokens = trial.tokens
        functions = oracle.functions(self.model, tokens, teacher.entering, self.window) if tokens else {}
        with attention_as(self.model, functions):
            return run_layers(self.model, prefix.entering[trial.first], trial.plan, trial.first)


def probe_sums(model: Any, hidden: Tensor, probe: Probe) -> Sums:
    """Sums of the probe's targets by group, from what the final norm leaves: hidden [1, T, D]."""
    loss, right = _scores(model, hidden[0, probe.targets - 1], probe.ids[probe.targets])
    found = {name: [float(loss[where].sum()), int(where.sum())] for name, where in probe.groups.items()}
    return found | ({"exact": [float(right.all()), 1]} if probe.exact else {})


def _scores(model: Any, hidden: Tensor, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nats of each target and whether it is the most likely token, both [n], from hidden [n, D]."""
    wanted, loss, right = torch.from_numpy(targets).to(hidden.device), [], []
    for part, ids in zip(hidden.split(SLICE), wanted.split(SLICE), strict=True):
        logits = model.backbone.lm_head(part).float()
        loss.append(F.cross_entropy(logits, ids, reduction="none"))
        right.append(logits.argmax(-1) == ids)
    return torch.cat(loss).double().cpu().numpy(), torch.cat(right).cpu().numpy()
