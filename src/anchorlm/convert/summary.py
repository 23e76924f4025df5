"""What a plan means for a model, from its config alone: layers, parameters, exact bytes. No weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..core import UserError, suggest
from ..describe import describe, describe_slots, notes, state_bytes
from ..hf.model import AnchorForCausalLM
from ..plan import ModelShape, Plan
from ..shipped import located
from . import adapters, files
from .bases import load_base_config


def _sizes(
    family: str, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, reach: int
) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": reach,
    }


_TIED = {"tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": _sizes("llama", 576, 1536, 30, 9, 3, 49152, 8192) | _TIED,
    "llama-3.2-1b": _sizes("llama", 2048, 8192, 16, 32, 8, 128256, 131072) | _TIED,
    "llama-3.1-8b": _sizes("llama", 4096, 14336, 32, 32, 8, 128256, 131072),
    "mistral-7b": _sizes("mistral", 4096, 14336, 32, 32, 8, 32768, 32768) | {"sliding_window": None},
    "qwen2.5-7b": _sizes("qwen2", 3584, 18944, 28, 28, 4, 152064, 32768),
    "qwen3-8b": _sizes("qwen3", 4096, 12288, 36, 32, 8, 151936, 40960) | {"head_dim": 128},
}


def shape_config(name: str) -> Any:
    """The transformers config of a known model size, for planning without a checkpoint."""
    from transformers import AutoConfig

    if name not in SHAPES:
        raise UserError(f"shape {name!r} is unknown; {suggest(name, SHAPES)}")
    return AutoConfig.for_model(**SHAPES[name])


def source_config(path: str) -> tuple[Any, dict[str, Any]]:
    """(backbone config, the stored anchorlm config or {}) of an anchorlm folder or a BASE name."""
    from transformers import AutoConfig

    stored = files.read_config(located(path))
    if stored is None:
        return load_base_config(path), {}
    return AutoConfig.for_model(**stored["backbone"]), stored


def summary(
    config: Any, plan: Plan, lora: dict[str, Any] | None = None, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Any]:
    """Rows of the plan, parameter counts and the bytes of every part of the state of one sequence.

    `dtype` is that of keys and values; states are fp32.
    """
    shape = ModelShape.from_config(config, dtype.itemsize)
    plan.check(shape)
    model = empty_model(config, plan)
    memory = sum(value.numel() for value in model.memory_parameters().values())
    total = sum(value.numel() for value in model.parameters())
    added = lora_count(model, lora) if lora else 0
    return {
        "shape": {name: getattr(shape, name) for name in shape.__dataclass_fields__},
        "layers": describe(plan, shape),
        "slots": describe_slots(plan, shape),
        "parameters": {"total": total + added, "backbone": total - memory, "memory": memory, "lora": added},
        "dtype": str(dtype).removeprefix("torch."),
        "state_bytes": state_bytes(plan, shape),
        "notes": notes(plan, shape),
        "plan": plan.to_dict(),
    }


def empty_model(config: Any, plan: Plan) -> AnchorForCausalLM:
    """The hybrid without storage: parameter names and shapes only."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AnchorForCausalLM.from_backbone(AutoModelForCausalLM.from_config(config), plan)


def lora_count(model: Any, config: dict[str, Any]) -> int:
    """Parameters that a stored LoRA config adds: rank * (inputs + outputs) of every matched layer."""
    targets = set(config.get("target_modules") or ())
    names = [name for name in adapters.linear_names(model.backbone) if name.rpartition(".")[2] in targets]
    layers = [model.backbone.get_submodule(name) for name in names]
    return sum(int(config["r"]) * (layer.in_features + layer.out_features) for layer in layers)


def stored_lora(path: str | Path) -> dict[str, Any] | None:
    config = Path(located(path)) / files.LORA / files.LORA_CONFIG
    return files.read_json(config) if config.is_file() else None
