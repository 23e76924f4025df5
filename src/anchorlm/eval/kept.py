"""What stands in a run's folder already: the result of another run is not written over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anchorlm.core import UserError
from anchorlm.settings import changed


@dataclass(frozen=True)
class Facts:
    """What fixes a result.

    settings: must be equal, as far as both runs name them. parts: by label, None where it is not known yet; a run may
    add some, but leave none out.
    """

    settings: Mapping[str, Any]
    parts: Mapping[str, Any] = field(default_factory=dict)


def check_kept(path: Path, kind: str, facts: Facts, of: Callable[[dict[str, Any]], Facts]) -> None:
    """Raise UserError when `path` holds what a run with these facts would not write again.

    of: the facts of a kept result.
    """
    if not path.exists():
        return
    old = _read(path, kind, of)
    if old is None:
        raise UserError(f"{path} is not the result of a run ({kind}); name another folder")
    found = _difference(old, facts)
    if found:
        raise UserError(f"{path} holds another run: {found}; name another folder, or remove that file")


def _read(path: Path, kind: str, of: Callable[[dict[str, Any]], Facts]) -> Facts | None:
    """None for a file of another kind, or a damaged one."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return of(kept) if kept["kind"] == kind else None
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
