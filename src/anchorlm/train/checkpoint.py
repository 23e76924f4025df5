"""Checkpoints that a killed run resumes from exactly. No pickle: tensors as safetensors, the rest as JSON."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core import UserError, atomic_dir

NAME = re.compile(r"step-(\d{8})")
FILES = ("weights.safetensors", "optimizer.safetensors", "rng.safetensors")


@dataclass
class Position:
    """Where a run stands: `step` optimizer steps of the whole run are done, `stage_step` of them in `stage`."""

    stage: str
    stage_step: int = 0
    step: int = 0
    cursor: Any = None  # of the data, JSON-able; None before the first batch
    tokens: int = 0  # counted tokens read so far
    identity: dict[str, Any] = field(default_factory=dict)  # recipe, plan, data and base of the run


def save_checkpoint(
    root: Path, position: Position, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], keep: int
) -> Path:
    """Write `root/step-NNNNNNNN` atomically and remove all but the newest `keep` checkpoints."""
    path = root / f"step-{position.step:08d}"
    with atomic_dir(path, overwrite=True) as folder:
        save_file(_plain(weights), folder / FILES[0])
        save_file(_plain(optimizer), folder / FILES[1])
        save_file(_rng_tensors(), folder / FILES[2])
        state = {"position": asdict(position), "python_rng": random.getstate()}
        state["sizes"] = {name: (folder / name).stat().st_size for name in FILES}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    for old in checkpoints(root)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def checkpoints(root: Path) -> list[Path]:
    """Checkpoint folders, newest first. A folder under construction has another name and is not among them."""
    found = [path for path in root.glob("step-*") if NAME.fullmatch(path.name)] if root.is_dir() else []
    return sorted(found, reverse=True)


def newest_complete(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files are whole, and one line for each newer one that is damaged."""
    remarks = []
    for path in checkpoints(root):
        try:
            read_position(path)
            return path, remarks
        except UserError as error:
            remarks.append(f"{error}; an older one is used")
    return None, remarks


def read_position(path: Path) -> Position:
    """The position of a checkpoint whose files have the sizes they were written with; else UserError."""
    return Position(**_state(path)["position"])


def _state(path: Path) -> dict:
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        sizes = {name: (path / name).stat().st_size for name in FILES}
    except (OSError, ValueError):
        raise UserError(f"checkpoint {path} is damaged: a file is missing or unreadable") from None
    for name, size in sizes.items():
        if size != state["sizes"][name]:
            raise UserError(f"checkpoint {path} is damaged: {name} has {size} bytes, not {state['sizes'][name]}")
    return state


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """One safetensors file of a checkpoint; UserError when it is damaged."""
    try:
        return load_file(path / name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"checkpoint {path} is damaged: {name}: {error}") from None


def clear_unfinished(root: Path) -> None:
    """Remove what a killed run left half-written."""
    for path in root.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Optimizer state as flat tensors `parameter/part`; `names` maps id(parameter) to its name."""
    return {
        f"{names[id(parameter)]}/{part}": value
        for parameter, parts in optimizer.state.items()
        for part, value in parts.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str], tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took out. Learning rates are a function of the step, so they are not stored."""
    grouped: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        grouped.setdefault(name, {})[part] = value
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            stored = grouped.get(names[id(parameter)], {})
            placed = {part: value if part == "step" else value.to(parameter.device) for part, value in stored.items()}
            if placed:
                optimizer.state[parameter] = placed


def load_weights(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy stored weights into the parameters; names and shapes must be the same on both sides."""
    different = sorted(set(parameters) ^ set(tensors))
    if different:
        raise UserError(f"{where} holds other weights than this run trains, first difference: {different[0]}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                found, needed = tuple(tensors[name].shape), tuple(parameter.shape)
                raise UserError(f"{where}: {name} has shape {found}, the run needs {needed}")
            parameter.copy_(tensors[name])


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _rng_tensors() -> dict[str, Tensor]:
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    del kind
    state = {
        "torch": torch.get_rng_state(),
        "numpy_keys": torch.from_numpy(keys.astype(np.int64)),
        "numpy_rest": torch.tensor([place, has_gauss, gauss], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        state |= {f"cuda{i}": value for i, value in enumerate(torch.cuda.get_rng_state_all())}
    return state


def restore_rng(path: Path) -> None:
    """Set the Python, numpy and torch generators as they were when the checkpoint was written."""
    version, values, gauss = _state(path)["python_rng"]
    random.setstate((version, tuple(values), gauss))
    tensors = read_tensors(path, FILES[2])
    torch.set_rng_state(tensors["torch"])
    place, has_gauss, cached = tensors["numpy_rest"].tolist()
    keys = tensors["numpy_keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(place), int(has_gauss), cached))
    if torch.cuda.is_available():
        count = sum(key.startswith("cuda") for key in tensors)
        torch.cuda.set_rng_state_all([tensors[f"cuda{i}"] for i in range(count)])
