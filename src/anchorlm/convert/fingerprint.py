"""Which files hold a folder's weights, how large they are, and a short name for their content."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core import UserError

INDEX = "model.safetensors.index.json"
_PLACES, _WIDTH = 4, 256  # samples of each tensor's bytes


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers would read; other forms of the same weights may lie beside them."""
    if (folder / INDEX).is_file():
        try:
            names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"base {folder}: {INDEX} is damaged") from None
        return [folder / name for name in sorted(names)]
    single = folder / "model.safetensors"
    return [single] if single.is_file() else []


def fingerprint(folder: str | Path) -> str:
    """16 hex digits that name the weights in a folder: tensor names, dtypes, shapes and samples of their bytes.

    Independent of path, sharding and file order; a copy in another dtype has another fingerprint.
    """
    digests = sorted(digest for path in weight_files(Path(folder)) for digest in _tensor_digests(path))
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def element_count(folder: Path) -> int:
    """Numbers in all tensors of a folder. Raises UserError where a file is missing or its header damaged."""
    try:
        headers = [read_header(path)[0] for path in weight_files(folder)]
        return sum(math.prod(entry["shape"]) for header in headers for entry in header.values())
    except FileNotFoundError as error:
        raise UserError(f"base {folder}: the weights lack {Path(error.filename).name}") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, MemoryError, OverflowError):
        raise UserError(f"base {folder}: the weights cannot be read (a safetensors header is damaged)") from None


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Tensor name -> {dtype, shape, data_offsets}, and where in the file the data begin."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > path.stat().st_size:
            raise ValueError("length")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def _tensor_digests(path: Path) -> Iterator[bytes]:
    header, start = read_header(path)
    with path.open("rb") as file:
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            digest = hashlib.sha256(f"{name} {entry['dtype']} {entry['shape']}".encode())
            for step in range(_PLACES):
                file.seek(start + begin + max(0, end - begin - _WIDTH) * step // (_PLACES - 1))
                digest.update(file.read(min(_WIDTH, end - begin)))
            yield digest.digest()
