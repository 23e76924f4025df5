"""Read what `save` and `merge` wrote, strictly; or a plain base as the untouched teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..core import UserError, pick_dtype
from ..hf.model import AnchorForCausalLM
from ..plan import ModelShape, Plan
from ..shipped import located
from . import adapters, bases, files
from .attach import assert_finite, convert
from .bases import Base, load_base
from .export import check_transformers
from .hub import first_line
from .quiet import quiet

# Set by transformers' Auto classes on the way, without a meaning for a local adapter folder.
_FROM_AUTO = (
    *("config", "trust_remote_code", "_from_auto", "adapter_kwargs", "code_revision", "_commit_hash", "revision"),
    *("cache_dir", "force_download", "local_files_only", "proxies", "token", "subfolder"),
)


def load(
    path: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    *,
    base: str | None = None,
    any_base: bool = False,
) -> tuple[AnchorForCausalLM, Any]:
    """(model in eval mode, tokenizer) of an anchorlm folder, of an adapter that comes with the package, or of a BASE.

    A BASE (folder, hub id, .gguf, alias) gives the teacher: full attention and no slot.
    `base` replaces the stored name of the base, for one that moved; `any_base` accepts other base weights.
    Raises UserError for a damaged file, a missing or unexpected tensor, a stored plan that does not fit the base,
    or a base whose fingerprint differs from the stored one.
    """
    path = located(path)
    config = files.read_config(path)
    if config is None:
        return _teacher(str(path), dtype, device)
    check_transformers(config.get("transformers_range"), str(path))
    if files.is_adapter(path):
        return _adapter(Path(path), config, load_base_of(Path(path), config, base, dtype, device), any_base)
    if config.get("base") and not _has_weights(Path(path)):
        raise UserError(f"{Path(path) / files.MEMORY} is missing")
    return _whole(Path(path), dtype, device)


def load_for_transformers(folder: Path, **options: Any) -> Any:
    """What `from_pretrained` calls for an adapter folder. Raises TypeError for an option that would be ignored."""
    for name in _FROM_AUTO:
        options.pop(name, None)
    dtype = options.pop("dtype", None) or options.pop("torch_dtype", None) or "auto"
    device = options.pop("device_map", None) or "cpu"
    report = options.pop("output_loading_info", False)
    if options:
        raise TypeError(f"from_pretrained of an anchorlm adapter folder has no option {sorted(options)[0]!r}")
    name = str(dtype).removeprefix("torch.")
    model, _ = load(folder, "auto" if name == "auto" else name, "auto" if device == "auto" else device)
    return (model, {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}) if report else model


AnchorForCausalLM.adapter_loader = load_for_transformers


def load_tokenizer(path: str | Path, base: str | None = None) -> Any:
    """The tokenizer of an anchorlm folder or of a BASE; no weight is read. Raises UserError where there is none."""
    path = located(path)
    config = files.read_config(path)
    if config is None:
        return bases.load_tokenizer(path)
    own = _tokenizer(Path(path))
    name = base or config.get("base")
    if own is None and not name:
        raise UserError(f"{path} has no tokenizer and names no base; pass --base")
    return own or bases.load_tokenizer(name)


def _teacher(name: str, dtype: str | torch.dtype, device: str | torch.device) -> tuple[AnchorForCausalLM, Any]:
    base = load_base(name, dtype=dtype, device=device)
    plan = Plan.from_dict({}, base.model.config.num_hidden_layers)
    return convert(base, plan).eval(), base.tokenizer


def load_base_of(folder: Path, config: dict[str, Any], base: str | None, dtype: str | torch.dtype, device: Any) -> Base:
    name = base or config.get("base")
    if not name:
        raise UserError(f"{folder / files.CONFIG} names no base; pass --base")
    try:
        return load_base(name, dtype=dtype, device=device)
    except UserError as error:
        raise UserError(f"the base of {folder}: {error}") from error


def _adapter(folder: Path, config: dict[str, Any], base: Base, any_base: bool) -> tuple[AnchorForCausalLM, Any]:
    _check_base(folder, config, base, any_base)
    plan = Plan.from_dict(config.get("plan") or {}, base.model.config.num_hidden_layers)
    model = convert(base, plan)
    stored = files.read_tensors(folder / files.MEMORY)
    adapters.copy_tensors(dict(model.memory_parameters()), stored, str(folder / files.MEMORY))
    if (folder / files.LORA).is_dir():
        settings = files.read_json(folder / files.LORA / files.LORA_CONFIG)
        weights = files.read_tensors(folder / files.LORA / files.LORA_WEIGHTS)
        adapters.load_lora(model, settings, weights, str(folder / files.LORA))
    return model.eval(), _tokenizer(folder) or base.tokenizer


def _check_base(folder: Path, config: dict[str, Any], base: Base, any_base: bool) -> None:
    stored = ModelShape.from_config(config["backbone"])
    found = ModelShape.from_config(base.model.config)
    for name in ("family", "layers", "hidden", "query_heads", "kv_heads", "head_dim", "vocab"):
        if getattr(stored, name) != getattr(found, name):
            needed, has = getattr(stored, name), getattr(found, name)
            raise UserError(f"{folder} was made for a base with {name} {needed}; {base.name} has {has}")
    fingerprint = config.get("base_fingerprint")
    if fingerprint and fingerprint != base.fingerprint and not any_base:
        raise UserError(
            f"{folder} was made on other weights than {base.name} holds (fingerprint {fingerprint[:12]}, "
            f"found {base.fingerprint[:12]}); use that base, or pass --any-base to accept these"
        )


def _whole(folder: Path, dtype: str | torch.dtype, device: str | torch.device) -> tuple[AnchorForCausalLM, Any]:
    for weights in sorted(folder.glob("*.safetensors")):
        files.check_tensors(weights)
    with quiet():
        model, report = AnchorForCausalLM.from_pretrained(
            folder, dtype=pick_dtype(dtype, device), output_loading_info=True
        )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(str(name) for name in report.get(kind) or ())
        if names:
            raise UserError(
                f"{folder} does not fit its plan: {kind.replace('_', ' ')}: {names[0]} ({len(names)} in all)"
            )
    assert_finite(model)
    return model.to(device).eval(), _tokenizer(folder)


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("model*.safetensors"))


def _tokenizer(folder: Path) -> Any:
    if not (folder / "tokenizer_config.json").is_file():
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers and tokenizers raise many kinds for a damaged file
        raise UserError(f"{folder}: the tokenizer cannot be read ({first_line(error)})") from error
