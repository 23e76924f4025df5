"""What stands in a run's folder already: the result of another run is not written over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anchorlm.convert.files import holds_model
from anchorlm.core import UserError, check_folder
from anchorlm.settings import changed


@dataclass(frozen=True)
class Facts:
    """What fixes a result.

    settings: must be equal, as far as both runs name them. parts: by label, None where it is not known yet; a run may
    add some, but leave none out.
    """

    settings: Mapping[str, Any]
    parts: Mapping[str, Any] = field(default_factory=dict)


def check_run_folder(out: str | Path | None) -> None:
    """Raise UserError unless results, and the parts of them that are kept, may be written to the folder `out`: no file,
    and no model's; None is no output."""
    check_folder(out)
    check_folder(None if out is None else Path(out) / "parts")
    if out is not None and holds_model(out):
        raise UserError(f"output {out} is the folder of a model; name another for the results")


def check_ours(path: Path, kind: str, *pages: str) -> None:
    """Raise UserError for a file that a run would write over although no run wrote it.

    path: the result, a JSON file of that kind; pages: suffixes of the pages beside it, which are ours where it is.
    """
    for written in (path, *map(path.with_suffix, pages)):
        if written.is_dir():
            raise UserError(f"{written} is a folder, where a run writes a file; name another folder")
    if path.exists():
        if _kind(path) != kind:
            raise UserError(f"{path} is not the result of a run ({kind}); name another folder")
        return
    for page in map(path.with_suffix, pages):
        if page.exists():
            raise UserError(f"{page} is not of a run, as no {path.name} is beside it; name another folder")


def _kind(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def check_kept(path: Path, kind: str, facts: Facts, of: Callable[[dict[str, Any]], Facts]) -> None:
    """Raise UserError when `path` holds what a run with these facts would not write again.

    of: the facts of a kept result.
    """
    check_ours(path, kind)
    if not path.exists():
        return
    old = _read(path, of)
    if old is None:
        raise UserError(f"{path} is not the result of a run ({kind}); name another folder")
    found = _difference(old, facts)
    if found:
        raise UserError(f"{path} holds another run: {found}; name another folder, or remove that file")


def _read(path: Path, of: Callable[[dict[str, Any]], Facts]) -> Facts | None:
    """None for a damaged file."""
    try:
        return of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _difference(old: Facts, new: Facts) -> str | None:
    lost = [label for label in old.parts if label not in new.parts]
    if lost:
        return f"it has {', '.join(lost)}, which this run leaves out"
    known = json.loads(json.dumps({label: new.parts[label] for label in old.parts}))
    others = [
        label for label, value in old.parts.items() if None not in (value, known[label]) and value != known[label]
    ]
    if others:
        return f"its {', '.join(others)} has changed"
    both = set(old.settings) & set(new.settings)
    return changed(*({name: side.settings[name] for name in side.settings if name in both} for side in (old, new)))
