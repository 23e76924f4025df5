"""The user's cache folder: things built once, complete or absent, safe against several processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import FileLock

from ..core import UserError, atomic_dir, atomic_file

MARKER = "complete.json"
log = logging.getLogger("anchorlm")


def cache_folder() -> Path:
    """ANCHORLM_CACHE, else XDG_CACHE_HOME/anchorlm, else ~/.cache/anchorlm; not created here."""
    if own := os.environ.get("ANCHORLM_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "anchorlm"


def build_once(folder: Path, build: Callable[[Path], dict]) -> Path:
    """`folder` filled by `build(temporary)`, which returns facts for the marker; built again when found damaged.

    The marker lists the size of every file, so that a truncated cache is noticed. Raises UserError where the
    cache cannot be written.
    """
    if is_complete(folder):
        return folder
    with _lock(folder):
        if not is_complete(folder):  # another process may have built it while this one waited
            _build(folder, build)
    return folder


def is_complete(folder: Path) -> bool:
    """True when the marker is there and every file has the size it names."""
    return bool(facts := read_marker(folder)) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in facts["files"].items()
    )


def read_marker(folder: Path) -> dict:
    """What was stored about a built folder; empty when it is absent or unreadable."""
    try:
        facts = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_marker = isinstance(facts, dict) and isinstance(facts.get("files"), dict)
    return facts if is_marker else {}


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raises UserError when the disk of `folder` has fewer than `needed` bytes free."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed:
        raise UserError(
            f"{what} needs {needed / 1e6:,.0f} MB in {folder}, {free / 1e6:,.0f} MB are free; "
            "free some or point ANCHORLM_CACHE at another disk"
        )


def require_memory(needed: int, what: str) -> None:
    """Raises UserError when the machine has fewer than `needed` bytes of memory free."""
    available = psutil.virtual_memory().available
    if available < needed:
        raise UserError(f"{what} needs {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are free")


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            log.info("waiting for another process that is preparing %s", folder.name)
            lock.acquire()
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"cache folder {folder.parent} cannot be written ({reason}); set ANCHORLM_CACHE to another"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _build(folder: Path, build: Callable[[Path], dict]) -> None:
    _remove_leftovers(folder)
    try:
        with atomic_dir(folder, overwrite=True) as temporary:
            facts = build(temporary)
            files = {str(p.relative_to(temporary)): p.stat().st_size for p in temporary.rglob("*") if p.is_file()}
            with atomic_file(temporary / MARKER) as file:
                json.dump({**facts, "files": dict(sorted(files.items()))}, file, indent=1)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(
            f"cache folder {folder} cannot be written ({reason}); set ANCHORLM_CACHE to a folder that can be"
        ) from None


def _remove_leftovers(folder: Path) -> None:
    """Temporary folders of a process that was killed; whoever holds the lock is the only one building."""
    for path in folder.parent.glob(f".{folder.name}.*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
