"""Documents to one token file on disk, made once per (texts, tokenizer) and mapped, not loaded, afterwards."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anchorlm.core import UserError, atomic_dir
from anchorlm.data.sources import Document, file_kind, find_files, read_bytes, read_documents

FORMAT = 1  # raise it whenever the same text would be stored differently


@dataclass(frozen=True)
class TokenStore:
    """All documents as one stream of token ids, one eos after each document.

    tokens   [N] uint16 or uint32, read-only map of the file
    offsets  [D + 1] int64; document i is tokens[offsets[i]:offsets[i + 1]], its eos included
    sizes    [D] int64, UTF-8 bytes of each document's text
    names    D names; content_hash: of the texts alone; tokenizer_hash: of the tokenizer alone
    bos      id that the tokenizer puts before a text, or None; it is not stored in the stream
    """

    tokens: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    names: tuple[str, ...]
    content_hash: str
    tokenizer_hash: str
    eos: int | None
    bos: int | None

    @classmethod
    def build(
        cls, paths: str | Path | Iterable[str | Path], tokenizer: Any, cache_dir: str | Path, progress: Any = None
    ) -> TokenStore:
        """Open the store of these files, tokenising them first if no store of that content exists.

        The key is the content and the tokenizer, not the path, so a moved file is not tokenised again and a changed
        one is. Two processes that start at once make one store: the second waits for the first.
        `progress(name)` is called for each document read.
        """
        files = find_files(paths)
        content, vocabulary = _content_hash(files), tokenizer_fingerprint(tokenizer)
        folder = Path(cache_dir) / hashlib.sha256(f"{FORMAT} {content} {vocabulary}".encode()).hexdigest()[:24]
        with _lock(folder):
            store = _open(folder)
            if store is None:
                shutil.rmtree(folder, ignore_errors=True)
                _write(folder, read_documents(files), tokenizer, content, vocabulary, progress)
                store = _open(folder)
        if store is None:
            raise UserError(f"token cache {folder} cannot be read back; check the disk or choose another cache folder")
        return store

    @classmethod
    def from_documents(cls, documents: Iterable[Document], tokenizer: Any) -> TokenStore:
        """The same store held in memory, for texts that are not files."""
        pieces, sizes, names, digest = [], [], [], hashlib.sha256()
        for document in documents:
            pieces.append(np.asarray(encode_document(document.text, tokenizer)))
            sizes.append(len(document.text.encode()))
            names.append(document.name)
            digest.update(hashlib.sha256(document.text.encode()).digest())
        if not pieces:
            raise UserError("no data: no document given")
        offsets = np.cumsum([0, *(len(piece) for piece in pieces)]).astype(np.int64)
        tokens = np.concatenate(pieces).astype(_width(tokenizer))
        return cls(tokens, offsets, np.asarray(sizes, np.int64), tuple(names), digest.hexdigest()[:16],
                   tokenizer_fingerprint(tokenizer), tokenizer.eos_token_id, leading_bos(tokenizer))  # fmt: skip

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.offsets) - 1

    def document(self, index: int) -> np.ndarray:
        """Token ids [n] int64 of one document, without its eos."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        return np.asarray(self.tokens[start : stop - (self.eos is not None)], dtype=np.int64)

    @cached_property
    def starts(self) -> np.ndarray:
        """Sorted positions [D] in the stream where a document begins."""
        return self.offsets[:-1]

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of text for each token of the whole store."""
        return float(self.sizes.sum()) / max(1, int(self.offsets[-1]) - len(self) * (self.eos is not None))


def encode_document(text: str, tokenizer: Any) -> list[int]:
    """Ids of the text without special tokens, closed by one eos where the tokenizer has one."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids if tokenizer.eos_token_id is None else [*ids, tokenizer.eos_token_id]


def leading_bos(tokenizer: Any) -> int | None:
    """The id this tokenizer itself puts before a text; None when it puts none (then none is ever added)."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    return full[0] if len(full) > len(plain) and full[0] != plain[0] else None


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """16 hex digits that change when the tokenizer would give other ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    body = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(f"{body} {tokenizer.eos_token_id}".encode()).hexdigest()[:16]


def _width(tokenizer: Any) -> type:
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


def _content_hash(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file_kind(file).encode() + hashlib.sha256(read_bytes(file)).digest())
    return digest.hexdigest()[:16]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock file; where the system has no file locks the atomic rename alone protects the store."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(folder.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(
    folder: Path, documents: Iterator[Document], tokenizer: Any, content: str, vocabulary: str, progress: Any
) -> None:
    offsets, sizes, names = [0], [], []
    with atomic_dir(folder, overwrite=True) as temporary:
        with open(temporary / "tokens.bin", "wb") as file:
            for document in documents:
                ids = np.asarray(encode_document(document.text, tokenizer), dtype=_width(tokenizer))
                file.write(ids.tobytes())
                offsets.append(offsets[-1] + len(ids))
                sizes.append(len(document.text.encode()))
                names.append(document.name)
                if progress:
                    progress(document.name)
        meta = {
            "format": FORMAT,
            "dtype": np.dtype(_width(tokenizer)).name,
            "offsets": offsets,
            "sizes": sizes,
            "names": names,
            "content_hash": content,
            "tokenizer_hash": vocabulary,
            "eos": tokenizer.eos_token_id,
            "bos": leading_bos(tokenizer),
        }
        (temporary / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _open(folder: Path) -> TokenStore | None:
    """The store in `folder`, or None when it is missing or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        tokens = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")
        offsets = np.asarray(meta["offsets"], np.int64)
        if len(tokens) != offsets[-1]:
            return None
        return TokenStore(
            tokens, offsets, np.asarray(meta["sizes"], np.int64), tuple(meta["names"]),
            meta["content_hash"], meta["tokenizer_hash"], meta["eos"], meta["bos"],
        )  # fmt: skip
    except (OSError, ValueError, KeyError):
        return None
