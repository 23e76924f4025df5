"""What this machine offers, and which path a model would take on it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import psutil
import torch

from .convert import hub
from .convert.cached import cache_folder, is_complete, read_marker
from .convert.packaged import SMOLLM2, is_unpacked
from .core import pick_dtype

PACKAGES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy", "huggingface-hub")
OPTIONAL = {"triton": "triton", "fla": "fla-core", "flash_attn": "flash-attn", "lm_eval": "lm-eval"}
_NATIVE = ("avx512_bf16", "amx_bf16")


def doctor() -> dict[str, Any]:
    """JSON-able facts by section: versions, processor, accelerator, dtype, kernels, memory, cache, hub.

    Takes up to five seconds, which is how long an unreachable hub is waited for. Sizes are bytes.
    """
    return {
        "versions": _versions(),
        "processor": _processor(),
        "accelerator": _accelerator(),
        "dtype": _dtype(),
        "kernels": _kernels(),
        "memory": _memory(),
        "cache": _cache(),
        "hub": _hub(),
    }


def _versions() -> dict[str, str]:
    from . import __version__

    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"anchorlm": __version__, "python": platform.python_version(), **installed}


def _processor() -> dict[str, Any]:
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "features": sorted(name for name, has in capabilities.items() if has is True),
    }


def _accelerator() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"name": None, "note": "no GPU is visible to torch; everything runs on the CPU"}
    free, total = torch.cuda.mem_get_info()
    return {"name": torch.cuda.get_device_name(), "count": torch.cuda.device_count(), "free": free, "total": total}


def _dtype() -> dict[str, str]:
    """What `--dtype auto` means here, and why."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = str(pick_dtype("auto", device)).removeprefix("torch.")
    if device == "cuda":
        why = "the GPU computes bfloat16 natively" if chosen == "bfloat16" else "the GPU has no bfloat16"
    elif chosen == "bfloat16":
        why = "the CPU has bfloat16 instructions"
    else:
        why = f"the CPU lacks {' and '.join(_NATIVE)}: a bfloat16 product would be several times slower than float32"
    return {"auto": chosen, "device": device, "why": why}


def _kernels() -> dict[str, Any]:
    """Optional kernel packages that are installed, and the path that runs."""
    found = {name: _version_of(package) for name, package in OPTIONAL.items() if importlib.util.find_spec(name)}
    return {"path": "torch", "why": "plain torch computes window, slots and read maps everywhere", "installed": found}


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


def _memory() -> dict[str, int]:
    memory = psutil.virtual_memory()
    return {"total": memory.total, "available": memory.available}


def _cache() -> dict[str, Any]:
    folder = cache_folder()
    there = folder
    while not there.exists():
        there = there.parent
    return {
        "folder": str(folder),
        "writable": os.access(there, os.W_OK),
        "disk_free": shutil.disk_usage(there).free,
        "bases": _cached_bases(folder),
    }


def _cached_bases(folder: Path) -> list[dict[str, Any]]:
    """Converted GGUF files that a load takes without further work, with the bytes they occupy."""
    found = []
    for path in sorted(folder.glob("gguf/*/")):
        if is_complete(path):
            marker = read_marker(path)
            found.append({"source": marker["source"], "folder": str(path), "bytes": sum(marker["files"].values())})
    return found


def _hub() -> dict[str, Any]:
    repository = SMOLLM2.repository
    if hub.offline():
        answer, why = False, "the environment forbids it (ANCHORLM_OFFLINE, HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)"
    else:
        answer = hub.reachable(repository)
        why = "it answered" if answer else f"no answer about {repository} within {hub.PATIENCE:.0f} s"
    cached = hub.cached_snapshot(repository) is not None and not hub.wheel_only()
    source = f"hub {repository}" if cached or answer else SMOLLM2.source
    return {"reachable": answer, "why": why, SMOLLM2.alias: source, "unpacked": is_unpacked(SMOLLM2)}
