"""GGUF files: a look at the header, and one conversion into a safetensors folder that later loads take."""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ..core import UserError
from .cached import build_once, cache_folder, log, require_memory, require_space
from .quiet import quiet

KNOWN_SPLITS = (None, "default", "gpt-2", "llama3", "llama-v3", "llama-bpe", "tekken", "qwen2", "deepseek-r1-qwen")
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # mistral files say llama
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_SAMPLE = 1 << 16
_FORM = 1  # raise it when the conversion changes, so that folders converted by older code are not taken


def as_folder(path: Path) -> Path:
    """A Hugging Face folder with the weights (float32, as dequantised), config and tokenizer of a GGUF file.

    Takes half a minute for 100 MB the first time and nothing later. Raises UserError for a damaged file, another
    architecture, too little memory or disk.
    """
    check_header(path)
    return build_once(cached_folder(path), lambda folder: _convert(path, folder))


def cached_folder(path: Path) -> Path:
    """Where the converted form of this very content lies or will lie."""
    return cache_folder() / "gguf" / f"{path.stem}-{_content_key(path)}"


def load_config(path: Path):
    """The transformers config in the header; seconds, because the reader walks the whole vocabulary."""
    check_header(path)
    with _one_line(path), quiet():
        return AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)


def check_header(path: Path) -> str:
    """The architecture a GGUF file names; UserError when it is none of ours, or no GGUF file."""
    try:
        architecture = str(_metadata(path, {"general.architecture"})["general.architecture"])
    except OSError as error:
        raise UserError(f"base {path} cannot be read: {error.strerror}") from None
    except (EOFError, ValueError, KeyError):
        raise UserError(f"base {path} is not a whole GGUF file; fetch it again") from None
    if architecture not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        raise UserError(
            f"base {path} has the GGUF architecture {architecture!r}; allowed: {allowed}. "
            "Take the Hugging Face checkpoint of a llama, mistral, qwen2 or qwen3 model"
        )
    return architecture


def _metadata(path: Path, wanted: set[str]) -> dict:
    """The named header values, as many as the file has; reading stops at the last of them."""
    found: dict = {}
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("magic")
        _version, _tensors, keys = struct.unpack("<IQQ", _exactly(file, 20))
        for _ in range(keys):
            name = _string(file)
            value = _value(file, *struct.unpack("<I", _exactly(file, 4)))
            if name in wanted:
                found[name] = value
            if len(found) == len(wanted):
                break
    return found


def _value(file: BinaryIO, kind: int):
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        item, count = struct.unpack("<IQ", _exactly(file, 12))
        for _ in range(count):
            _value(file, item)
        return None
    if kind not in _SCALARS:
        raise ValueError(f"value type {kind}")
    return struct.unpack(_SCALARS[kind], _exactly(file, struct.calcsize(_SCALARS[kind])))[0]


def _string(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", _exactly(file, 8))
    return _exactly(file, length).decode("utf-8")


def _exactly(file: BinaryIO, count: int) -> bytes:
    if count > 1 << 26:  # a damaged length would otherwise ask for all memory
        raise ValueError("length")
    data = file.read(count)
    if len(data) != count:
        raise EOFError
    return data


def _content_key(path: Path) -> str:
    """A short hash of size, head, tail and 64 places between; whole files of many GB would take minutes."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_FORM} {size}".encode())
    with path.open("rb") as file:
        for step in range(66):
            file.seek(max(0, size - _SAMPLE) * step // 65)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:12]


def _convert(path: Path, folder: Path) -> dict:
    log.info("converting %s once (about half a minute per 100 MB)", path.name)
    config = load_config(path)
    needed = 4 * _parameters(config)
    require_memory(needed * 6 // 5, f"unpacking {path.name}")
    require_space(folder, needed, f"the unpacked form of {path.name}")
    with _one_line(path), quiet(), contextlib.redirect_stderr(io.StringIO()):  # the reader's own progress bar
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        model: Any = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
        model.hf_quantizer = None  # the weights are plain float32 now; transformers refuses to save while this is set
        del model.config.quantization_config
        model.config.__dict__.pop("_model_name_or_path", None)
        model.save_pretrained(folder)
        tokenizer.model_max_length = model.config.max_position_embeddings
        _repair_split(tokenizer, path)
        tokenizer.save_pretrained(folder)
    return {"source": path.name, "source_bytes": path.stat().st_size, "dtype": "float32"}


def _repair_split(tokenizer, path: Path) -> None:
    """Cut digits off before anything else, as SmolLM's tokenizer does; transformers takes GPT-2's rule for it.

    The two differ where blanks or line ends stand before a digit, as in every table and numbered list.
    """
    split = _metadata(path, {"tokenizer.ggml.pre"}).get("tokenizer.ggml.pre")
    if split == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif split not in KNOWN_SPLITS:
        log.warning("%s splits text by %r, which is not known here; GPT-2's rule is used", path.name, split)


def _parameters(config) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())


class _one_line:
    """Any failure of the GGUF reader becomes one line: it reports damage by many kinds of exception."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind, error, trace) -> None:
        if error is None or isinstance(error, (UserError, KeyboardInterrupt, MemoryError)):
            return
        if "No space left" in str(error):
            raise UserError(f"the disk is full while converting {self.path.name}; set ANCHORLM_CACHE") from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"base {self.path} is damaged or of an unknown GGUF form: {reason[:200]}") from error
