"""Weights in the layout of the LoLCATs repository (github.com/HazyResearch/lolcats), read strictly.

Its layers hold `feature_map_q.mlp.layer` and `feature_map_k.mlp.layer` [H, d, m], `window_factors` [1, H, 1, 1], and
after fine-tuning peft's LoRA; a finetuned checkpoint puts `base_model.model.` before every name.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import UserError, no_file
from ..plan import ModelShape, Plan
from . import adapters, files

PREFIX = adapters.PREFIX
ALPHA = 16.0  # its LoRA: the checkpoint holds no settings


@dataclass(frozen=True)
class Published:
    """Feature maps and window factors under this package's names, and LoRA weights under peft's on-disk names."""

    memory: dict[str, Tensor]
    lora: dict[str, Tensor]
    where: str


def read_published(path: str | Path, plan: Plan, shape: ModelShape) -> Published:
    """The checkpoint `path` (.pt or .safetensors), checked against a plan such as the preset `lolcats`.

    Raises UserError for a plan of another form, and naming any tensor that is missing, unexpected or of another shape.
    """
    stored = {name.removeprefix(PREFIX): value for name, value in _read(Path(path)).items()}
    lora = {PREFIX + n.replace(".default.", "."): v for n, v in stored.items() if ".lora_" in n}
    maps = {name: value for name, value in stored.items() if ".lora_" not in name}
    wanted = _layout(plan, shape)
    _compare(sorted(set(wanted) - set(maps)), sorted(set(maps) - set(wanted)), str(path))
    for name, (_, size) in wanted.items():
        if tuple(maps[name].shape) != size:
            raise UserError(f"{path}: {name} has shape {tuple(maps[name].shape)}, the plan needs {size}")
    memory = {own: maps[name].flatten() if "window" in name else maps[name] for name, (own, _) in wanted.items()}
    return Published(memory, lora, str(path))


def fill(model: Any, published: Published) -> None:
    """Put the weights into a hybrid of the same plan, its LoRA included."""
    adapters.copy_tensors(dict(model.memory_parameters()), published.memory, published.where)
    if published.lora:
        rank = min(next(iter(published.lora.values())).shape)
        targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in published.lora})
        settings = {"r": rank, "lora_alpha": ALPHA, "target_modules": targets}
        adapters.load_lora(model, settings, published.lora, published.where)


def _layout(plan: Plan, shape: ModelShape) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Published name -> (own name, published shape)."""
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, slot in plan.slots.items():
        if slot.rule != "hedgehog" or slot.mix.kind != "shared" or slot.heads != "q" or slot.read != (slot.write,):
            raise UserError(
                f"slot {name!r} is not of the published form: rule hedgehog, mix shared, heads q, read by its own layer"
            )
        layer = f"model.layers.{slot.write}.self_attn."
        size = (shape.query_heads, shape.head_dim, slot.rule_options.width)
        names[layer + "feature_map_q.mlp.layer"] = (f"backbone.{layer}readers.{name}.queries.weight", size)
        names[layer + "feature_map_k.mlp.layer"] = (f"backbone.{layer}writers.{name}.keys.weight", size)
        names[layer + "window_factors"] = (f"backbone.{layer}readers.{name}.gate_share", (1, size[0], 1, 1))
    if not names:
        raise UserError("the plan has no slot, so it takes no published weights; use a plan such as lolcats")
    return names


def _compare(missing: list[str], unexpected: list[str], where: str) -> None:
    parts = [
        f"{verb} {names[0]} ({len(names)} in all)"
        for verb, names in (("lacks", missing), ("has unexpected", unexpected))
        if names
    ]
    if parts:
        raise UserError(f"{where} does not fit the plan: it {' and '.join(parts)}")


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise UserError(f"weights {path}: {no_file(path, 'no such file')}")
    if path.suffix == ".safetensors":
        return files.read_tensors(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise UserError(f"weights {path} cannot be read: {str(error).splitlines()[0]}") from None
    found = found.get("model_state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"weights {path} hold no tensors by name")
    return found
