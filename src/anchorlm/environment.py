"""What a figure was measured with: versions, hardware, threads, dtype. Every result file carries it."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("anchorlm", "torch", "transformers", "peft", "tokenizers", "numpy")


def environment(model: Any = None) -> dict[str, Any]:
    """JSON-able facts about this process and, when given, the model's dtype, device and attention path."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return facts | model_facts(model) if model is not None else facts


def model_facts(model: Any) -> dict[str, Any]:
    """dtype, device and the path that computes attention."""
    parameter = next(model.parameters())
    path = getattr(model, "kernel_path", None) or getattr(model.config, "_attn_implementation", None) or "torch"
    return {"dtype": str(parameter.dtype).removeprefix("torch."), "device": str(parameter.device), "kernel": str(path)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name; Linux gives it only in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
