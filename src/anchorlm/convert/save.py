"""Write a hybrid as a small adapter folder (the base is named, not copied) or as a whole folder."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..core import UserError, atomic_dir, check_apart
from ..hf.model import AnchorForCausalLM
from . import adapters, files
from .attach import changed_weights
from .card import write_card
from .quiet import quiet

LIBRARIES = ("anchorlm", "torch", "transformers", "peft", "safetensors", "tokenizers")


def save(
    model: AnchorForCausalLM,
    path: str | Path,
    tokenizer: Any = None,
    run: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write `model` to the folder `path`, which appears complete or not at all.

    With a named base only memory, gates, read maps and LoRA are written, a few megabytes; without one the weights
    are written whole. `run` is merged into run.json and shown on the model card (command, data, metrics, ...).
    Raises UserError when the folder is not empty and `overwrite` is not given.
    """
    path = Path(path)
    check_apart(path, model.config.base)
    with atomic_dir(path, overwrite=overwrite) as folder:
        record = run_record(model, run)
        if model.config.base:
            refuse_changed(model)
            write_adapter(model, folder)
        else:
            write_whole(model, folder)
        write_companions(model, folder, tokenizer, record, path.resolve().name)
    return path


def refuse_changed(model: AnchorForCausalLM) -> None:
    """Raise UserError when the backbone is no longer that of the base which an adapter folder would name."""
    if names := changed_weights(model):
        raise UserError(
            f"backbone weight {names[0]} was changed after loading ({len(names)} in all) and an adapter folder would "
            "lose that; set model.config.base = None to save the weights whole"
        )


def write_adapter(model: AnchorForCausalLM, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.memory_parameters().items()}
    save_file(tensors, folder / files.MEMORY, metadata={"format": "pt"})
    if adapters.has_lora(model):
        write_lora(model, folder / files.LORA)


def write_lora(model: AnchorForCausalLM, folder: Path) -> None:
    """peft's own format: `PeftModel.from_pretrained(base, folder)` reads it too."""
    folder.mkdir()
    config = adapters.lora_config(model)
    config.base_model_name_or_path = model.config.base
    config.inference_mode, config.task_type = True, "CAUSAL_LM"
    config.save_pretrained(folder)
    save_file(adapters.lora_state(model), folder / files.LORA_WEIGHTS, metadata={"format": "pt"})


def write_whole(model: AnchorForCausalLM, folder: Path) -> None:
    if adapters.has_lora(model):
        raise UserError("a model without a named base is saved whole; merge its LoRA first")
    with quiet():
        model.save_pretrained(folder)


def write_companions(
    model: AnchorForCausalLM, folder: Path, tokenizer: Any, record: dict[str, Any], title: str
) -> None:
    """Tokenizer, generation settings, run.json and the model card."""
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    text = json.dumps(record, indent=2, default=str)
    (folder / files.RUN).write_text(text + "\n", encoding="utf-8")
    write_card(model, record, folder / files.CARD, title)
    for path in folder.rglob("*.safetensors"):
        path.chmod((folder / files.CONFIG).stat().st_mode)  # safetensors makes files that only their owner may read


def run_record(model: AnchorForCausalLM, run: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is needed to repeat the run: command, versions, base, and every default that changes results."""
    weights = next(model.backbone.parameters())
    record = {
        "command": command_line(),
        "versions": versions(),
        "base": model.config.base,
        "base_fingerprint": getattr(model.config, "base_fingerprint", None),
        "dtype": str(weights.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "plan": model.plan.to_dict(),
        "parameters": count_parameters(model),
    }
    return record | dict(run or {})


def count_parameters(model: AnchorForCausalLM) -> dict[str, int]:
    """Numbers of each kind; tied weights count once."""
    memory = sum(value.numel() for value in model.memory_parameters().values())
    lora = sum(value.numel() for value in adapters.lora_parameters(model).values())
    total = sum(value.numel() for value in model.parameters())
    return {"total": total, "backbone": total - memory - lora, "memory": memory, "lora": lora}


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def command_line() -> str:
    """The command as a person would type it again."""
    program = Path(sys.argv[0]).name
    return " ".join(["anchorlm" if program == "__main__.py" else program, *sys.argv[1:]])
