"""`anchorlm doctor`: what this machine has and which path runs."""

from __future__ import annotations

from typing import Any

from . import options, show


def doctor(json: options.Json = False) -> None:
    """Show versions, devices, memory and kernels."""
    from ..doctor import doctor as examine

    found = examine()
    if json:
        return show.emit(found)
    for section, values in found.items():
        show.line(section)
        for name, value in values.items():
            show.line(f"  {name}: {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "none"
    return show.cell(value)
