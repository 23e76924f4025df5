"""The names inside a saved folder, and readers that turn a damaged file into one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from ..core import UserError

CONFIG = "config.json"
MEMORY = "memory.safetensors"
LORA = "lora"
LORA_CONFIG = "adapter_config.json"
LORA_WEIGHTS = "adapter_model.safetensors"
RUN = "run.json"
CARD = "README.md"
RECIPE, MACHINE, CHECKPOINTS = "config.yaml", "env.json", "checkpoints"  # of a training run, a model once it is done
MODEL_TYPE = "anchorlm"
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: not JSON ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: expected a JSON object")
    return values


def read_tensors(path: Path, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise UserError(f"{path} is missing")
    try:
        return load_file(path, device=str(device))
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def check_tensors(path: Path) -> None:
    """Read the header only: it tells a truncated or overwritten file apart without loading it."""
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise UserError(f"{path} is damaged: {error}") from None


def read_config(folder: str | Path) -> dict[str, Any] | None:
    """config.json of a folder that anchorlm saved, or None when `folder` is something else (a base)."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        return None
    values = read_json(path)
    if values.get("model_type") != MODEL_TYPE:
        return None
    _check_backbone(values.get("backbone"), path)
    return values


def _check_backbone(backbone: Any, path: Path) -> None:
    """Everything is sized by these numbers, so a wrong one is named before any is used."""
    if not isinstance(backbone, dict) or not backbone:
        raise UserError(f"{path} is damaged: it has no backbone")
    for name in _SIZES:
        value = backbone.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{path} is damaged: backbone.{name} is {value!r}; it must be a whole number of at least 1")


def holds_model(folder: str | Path) -> bool:
    """True for the folder of a model, saved here or elsewhere, and of a training run, finished or not."""
    folder = Path(folder)
    if is_adapter(folder) or is_unfinished(folder) or any(folder.glob("model*.safetensors")):
        return True
    try:
        return "model_type" in json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def is_unfinished(folder: str | Path) -> bool:
    """True for the folder of a training run that was stopped, or is still going on."""
    path = Path(folder)
    started = (path / RECIPE).is_file() and any((path / name).exists() for name in (MACHINE, CHECKPOINTS))
    return started and not (path / CONFIG).exists()


def check_finished(folder: str | Path) -> None:
    """Raise UserError for a training run that is to be used as a model before it is one."""
    if is_unfinished(folder):
        raise UserError(f"{folder} is a training run that is not finished; the same train command goes on with it")


def is_adapter(folder: str | Path) -> bool:
    """True for the small form: memory and LoRA beside the name of the base."""
    return (Path(folder) / MEMORY).is_file()
