"""Which past tokens to keep: choosers compared on one model, at the same number of exact tokens, nothing trained.

The layers named see window, sinks and the tokens that the chooser keeps for each KV head, all others window and sinks.
Choosers see what enters each layer under full attention. LoRA is off, so that every row has the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anchorlm.convert.adapters import lora_disabled
from anchorlm.core import UserError
from anchorlm.hf.families import cut
from anchorlm.hf.layers import Attended, attention_as, run_layers
from anchorlm.plan import Plan, Reach
from anchorlm.presets import SINKS

from ..bench import Prefix, Sums, probe_sums
from ..choosers import CHOOSERS, Chooser, Layer
from ..oracle import attend
from ..probes import BEYOND, TEXT, text_probe
from ..tally import by_group
from .job import Job, Options, Target

KEPT = (128,)
LEARNED = {"gate": "gate", "decay": "decaying gate"}  # by what a slot's option `choose` says
Row = dict[str, Any]


def check(target: Target, options: Options) -> None:
    """Raise UserError for a bad layer, a model without a window and too short a context, or one beyond the model."""
    target.layers(options)
    target.check_context(options)
    limit = target.shape.max_positions
    if options.context > limit:
        raise UserError(f"--context is {options.context}; full attention knows positions up to {limit:,}")


def choosers(job: Job) -> Row:
    """Loss over all and cross-window targets of each chooser and count, and the share of the window's loss it saves."""
    window = Reach("window", window=job.target.window(job.options), sinks=sinks_of(job.target.plan))
    layers = job.target.layers(job.options)
    probes = [text_probe(piece, window.window or 0, job.options.context) for piece in job.pieces()]
    counts = job.options.kept or KEPT
    known = [name for name in CHOOSERS if name not in LEARNED.values() or name == learned(job.model, layers)]
    asked = [("full attention", 0), ("window", 0), *((name, count) for count in counts for name in known)]
    found: dict[tuple[str, int], list[Sums]] = {each: [] for each in asked}
    for done, probe in enumerate(probes, 1):
        teacher = Prefix(job.model, _everywhere(job.model, Reach()), probe)
        for name, count in asked:
            found[name, count].append(_measure(job, teacher, name, count, layers, window))
        job.tell("choosers", done, len(probes))
    return job.head("choosers", len(probes)) | {
        "window": window.window,
        "sinks": window.sinks,
        "layers": layers,
        "rows": [_row(name, count, found, job.options.seed) for name, count in asked],
    }


def sinks_of(plan: Plan) -> int:
    """Sinks of the plan's windows; the usual number for a model without one."""
    return max((reach.sinks for reach in plan.layers if reach.kind == "window"), default=SINKS)


def gates(model: Any, layers: Sequence[int]) -> dict[int, Any]:
    """Layer -> the memory of its slot of kept tokens, if every layer has a gate for all of its KV heads."""
    found = {}
    for layer in layers:
        for writer in model.backbone.model.layers[layer].self_attn.writers.values():
            if getattr(writer.memory, "gate", None) is not None and writer.groups == model.shape.kv_heads:
                found[layer] = writer.memory
    return found if len(found) == len(set(layers)) else {}


def learned(model: Any, layers: Sequence[int]) -> str | None:
    """The chooser that the model's own gates are; None where some layer has none, or another kind."""
    found = {LEARNED[memory.options.choose] for memory in gates(model, layers).values()}
    return found.pop() if len(found) == 1 else None


def _measure(job: Job, teacher: Prefix, name: str, count: int, layers: Sequence[int], window: Reach) -> Sums:
    key = job.key("choosers", chooser=name, count=count, layers=list(layers), probe=teacher.probe.digest)
    key |= {"window": window.window, "sinks": window.sinks, "kept for": "each query"}
    return job.parts.run(key, lambda: _sums(teacher, name, count, layers, window))


@torch.inference_mode()
def _sums(teacher: Prefix, name: str, count: int, layers: Sequence[int], window: Reach) -> Sums:
    model, plan = teacher.model, _everywhere(teacher.model, window)
    with lora_disabled(model):  # also while the teacher is first asked for what enters its layers
        entering, functions = teacher.entering, {}
        if name == "full attention":
            return probe_sums(model, model.backbone.model.norm(entering[len(plan.layers)]), teacher.probe)
        if name in CHOOSERS:
            functions = _functions(model, layers, CHOOSERS[name], count, entering, window)
        with attention_as(model, functions):
            return probe_sums(model, run_layers(model, entering[0], plan), teacher.probe)


def _everywhere(model: Any, reach: Reach) -> Plan:
    return Plan((reach,) * len(model.plan.layers))


def _functions(
    model: Any, layers: Sequence[int], chooser: Chooser, count: int, entering: dict[int, Tensor], window: Reach
) -> dict[int, Attended]:
    gate = gates(model, layers)
    found: dict[int, Attended] = {}
    for index in layers:
        decoder = model.backbone.model.layers[index]
        own, near = (cut(reach, model.backbone.config, index) for reach in (Reach(), window))
        rotary = partial(model.backbone.model.rotary_emb, entering[index])
        score = partial(_scores, gate[index]) if index in gate else None
        layer = Layer(decoder.self_attn, decoder.input_layernorm(entering[index]), rotary, near, own, score)
        found[index] = partial(_attended, layer, chooser(layer, count))
    return found


def _attended(layer: Layer, chosen: Tensor, x: Tensor, _: Tensor) -> Tensor:
    return attend(layer.attention, x, layer.rotary, chosen, layer.window, layer.own).transpose(1, 2).flatten(2)


def _scores(memory: Any, x: Tensor, k: Tensor) -> Tensor:
    return memory.tokens(x, k)["score"][0].T


def _row(name: str, count: int, found: dict[tuple[str, int], list[Sums]], seed: int) -> Row:
    """`groups`: nats a token; `change`: against the window alone, paired; `closed`: the share of what full attention
    saves at cross-window targets; None where it saves nothing."""
    full, window, own = (found[key] for key in (("full attention", 0), ("window", 0), (name, count)))
    change = by_group(own, window, seed)
    whole = by_group(full, window, seed).get(BEYOND)
    closed = change[BEYOND]["value"] / whole["value"] + 0.0 if whole and whole["value"] < 0 else None  # no -0
    return {
        "chooser": name,
        "kept": count,
        "groups": {group: value for group, value in by_group(own, None, seed).items() if group in (TEXT, BEYOND)},
        "change": {group: value for group, value in change.items() if group in (TEXT, BEYOND)},
        "closed": closed,
    }
