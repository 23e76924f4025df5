"""Pieces of a run kept on disk as they are finished, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from anchorlm.core import atomic_file

FORMAT = 1  # raise it whenever a suite would give other figures for the same model and text
NAMES_ONLY = ("_name_or_path", "name_or_path", "transformers_version", "base")  # config fields without effect


class Parts:
    """Finished parts in `folder` (or only in this process when it is None), each under everything that fixes it."""

    def __init__(self, folder: Path | None):
        self.folder = folder

    def run(self, key: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """The stored value of `key`, or that of `compute()`, stored once complete. Both must be JSON-able."""
        if self.folder is None:
            return compute()
        if (found := self.find(key)) is not None:
            return found
        value = compute()
        path, full = self._place(key)
        with atomic_file(path) as file:
            json.dump({"key": full, "value": value}, file)
        return value

    def find(self, key: dict[str, Any]) -> Any:
        """The stored value of `key`; None when it was never measured, or is damaged."""
        if self.folder is None:
            return None
        path, full = self._place(key)
        stored = _read(path)
        return stored["value"] if stored is not None and stored.get("key") == full else None

    def path(self, key: dict[str, Any]) -> Path:
        """The file of `key`."""
        return self._place(key)[0]

    def _place(self, key: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        text = json.dumps(key | {"format": FORMAT}, sort_keys=True)
        assert self.folder is not None
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json", json.loads(text)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # a damaged part is measured again
        return None
    return found if isinstance(found, dict) and "value" in found else None


def model_digest(model: Any) -> str:
    """Changes with any weight, the plan, the config or the dtype, at a fraction of the cost of hashing every byte."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in NAMES_ONLY}
    digest = hashlib.sha256(json.dumps([plan_of(model), config], sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().flatten()
        facts = [name, list(value.shape), str(value.dtype), flat[:: max(1, len(flat) // 64)].double().tolist()]
        total = flat.sum(dtype=torch.float64) if flat.is_floating_point() else flat.sum()
        digest.update(json.dumps([*facts, total.item()]).encode())
    return digest.hexdigest()[:16]


def plan_of(model: Any) -> dict[str, Any] | None:
    """The explicit plan of an anchorlm model; None for a plain transformers model."""
    plan = getattr(model, "plan", None)
    return plan.to_dict() if plan is not None else None
