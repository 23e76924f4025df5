"""Errors, atomic writes, seeds and dtypes: the few things every other module may use."""

from __future__ import annotations

import difflib
import glob
import os
import random
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml


class UserError(ValueError):
    """A mistake in the input: one line that names the thing, its value and what is allowed. Exit code 2."""


def suggest(value: str, allowed: Iterable[str]) -> str:
    """`, did you mean 'x'?` when a close name exists, else the whole list of allowed names."""
    names = sorted(str(name) for name in allowed)
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"allowed: {', '.join(names) or 'none'}"


class _Keys(yaml.SafeLoader):
    """YAML in which each key of a mapping stands once; PyYAML takes the last and says nothing."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, said = super().compose_mapping_node(anchor), set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in said:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark)
            said.add((key.tag, key.value))
        return node


def read_yaml(text: str) -> Any:
    """Plain data of a YAML text. Raises YAMLError, and ValueError for an impossible date."""
    return yaml.load(text, _Keys)


LARGEST = 2**31 - 1  # of any size that is set: tokens, steps, widths
MANY = 1_000_000  # texts, samples or rows at once: more would run until it is killed
MOST = 10**15  # tokens or bytes that may be asked for


def not_whole(value: object, least: int, most: int = LARGEST) -> str | None:
    """What a value had to be and is not: a whole number from `least` to `most`; None where it is one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        return f"a whole number of at least {least}"
    return f"a whole number of at most {most:,}" if value > most else None


def quantity(text: str | int, units: Mapping[str, int]) -> int | None:
    """The whole number of `2MB`, `1.5K` or `1_000_000`: a number and one of `units` (capitals), at most MOST.

    None for any other text. Digits are those of ASCII.
    """
    found = re.fullmatch(r"\s*([0-9][0-9_]{0,30}(?:\.[0-9]{1,30})?)\s*([a-z]*)\s*", str(text), re.ASCII | re.IGNORECASE)
    unit = units.get(found[2].upper()) if found else None
    if found is None or unit is None:
        return None
    value = round(Fraction(found[1].replace("_", "")) * unit)
    return value if value <= MOST else None


@contextmanager
def atomic_file(path: str | Path, mode: str = "w") -> Iterator:
    """Open a temporary neighbour of `path`; it takes the name `path` only when the block ends without an error.

    What earlier programs that were killed left of the same file is removed then.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sweep(path)


@contextmanager
def alone(folder: str | Path) -> Iterator[None]:
    """Hold `folder`, which is made where it is missing, for this process while the block runs.

    A folder that was made and stays empty is removed. Raises UserError while another process holds it; a process that
    is killed holds nothing.
    """
    check_folder(folder)
    folder = Path(folder)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        _hold(handle, folder)
        yield
    finally:
        os.close(handle)
        for place in made:
            with suppress(OSError):
                place.rmdir()


def _hold(handle: int, folder: Path) -> None:
    """Lock the folder itself, so that no file is left of it; where folders cannot be locked, nobody is kept out."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"output {folder} is being written by another run; wait for it, or name another") from None
    except (ImportError, OSError):
        pass


LEFT = re.compile(r"\..+\.[a-z0-9_]{8}")  # the temporary neighbour of a file, as a kill leaves it


def occupied(path: str | Path) -> bool:
    """Whether a folder is there and holds anything but what a kill left of files that were being written."""
    return Path(path).exists() and any(not LEFT.fullmatch(item.name) for item in Path(path).iterdir())


def sweep(path: str | Path) -> None:
    """Remove what a kill left of the file `path` while it was written: its temporary neighbours that are older than
    this program."""
    path, began = Path(path), psutil.Process().create_time()
    for item in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        if LEFT.fullmatch(item.name) and item.is_file() and item.stat().st_mtime < began:
            item.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def no_file(path: str | Path, missing: str = "does not exist") -> str:
    """What is wrong with a path at which no file is."""
    return "is a folder; name a file" if Path(path).is_dir() else missing


def check_apart(out: str | Path, *sources: str | Path | None) -> None:
    """Raise UserError when writing the folder `out` would remove one of the `sources` that it is made from."""
    target = Path(out).resolve()
    for source in filter(None, sources):
        found = Path(source).expanduser().resolve()
        if found.exists() and (target == found or target in found.parents):
            raise UserError(f"output {out} is or holds the input folder {source}; name another")


def check_folder(path: str | Path | None) -> None:
    """Raise UserError unless the output `path` is a folder to write in, or can become one; None is no output."""
    if path is None:
        return
    if not str(path):
        raise UserError("--out is empty; name a folder")
    for place in (Path(path), *Path(path).parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"output {place} is a file; name a folder")
    there = next(place for place in (Path(path), *Path(path).absolute().parents) if place.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()  # rights alone do not tell: of /proc root has them all
    except OSError as error:
        raise UserError(f"output {path}: nothing can be written in {there}: {error.strerror}; name another") from None


def check_page_apart(page: str | Path | None, out: str | Path | None) -> None:
    """Raise UserError where one name is given to a page and to the output beside it, or to a folder on its way."""
    if page is not None and out is not None:
        one, other = Path(page).resolve(), Path(out).resolve()
        if one == other or one in other.parents:
            raise UserError(f"--report {page} is where --out {out} goes; name another page")


@contextmanager
def atomic_dir(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Fill a temporary neighbour folder; it takes the name `path` only when the block ends without an error.

    Raises UserError when `path` exists and is not empty, unless `overwrite`.
    """
    check_folder(path)
    path = Path(path)
    if occupied(path) and not overwrite:
        raise UserError(f"output folder {path} exists and is not empty; choose another or pass --overwrite")
    path = path.resolve()  # `.` has no name to put a temporary neighbour beside
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        os.chmod(temporary, 0o777 & ~_umask())
        yield temporary
        _share(temporary)
        _swap(temporary, path, overwrite)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _share(folder: Path) -> None:
    """Files as readable as any other file of this user; safetensors writes its own for the owner alone."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod((0o666 & ~_umask()) | (file.stat().st_mode & 0o111))


def _swap(temporary: Path, path: Path, overwrite: bool) -> None:
    """Put `temporary` in the place of `path`; the old folder is removed only after the new one stands."""
    if not path.exists() or not any(path.iterdir()):
        os.replace(temporary, path)
        return
    if occupied(path) and not overwrite:
        raise UserError(f"output folder {path} was filled by another process meanwhile; choose another")
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    os.replace(path, old)
    os.replace(temporary, path)
    shutil.rmtree(old, ignore_errors=True)


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def pick_dtype(dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu") -> torch.dtype:
    """The torch dtype itself, or that of a name. "auto": bfloat16 where the device computes it natively, else float32.

    On a CPU without bf16 instructions a bf16 product is several times slower than a float32 one.
    """
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        return torch.bfloat16 if _native_bf16(torch.device(device)) else torch.float32
    if name not in DTYPES:
        raise UserError(f"dtype {name!r} is unknown; {suggest(name, ['auto', *DTYPES])}")
    return DTYPES[name]


def _native_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capability = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capability.get("avx512_bf16") or capability.get("amx_bf16"))


def seed_all(seed: int) -> None:
    """Seed Python and torch; numpy generators in this package are always created from an explicit seed."""
    random.seed(seed)
    torch.manual_seed(seed)
