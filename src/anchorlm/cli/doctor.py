"""`anchorlm doctor`: what this machine has and which path runs."""

from __future__ import annotations

from typing import Any

from . import options, show


def doctor(rules: options.Rules = [], json: options.Json = False) -> None:
    """Show versions, devices, memory and kernels; with --rules, put these rules to the conformance suite instead."""
    if rules:
        return _check(rules, json)
    from ..doctor import doctor as examine

    found = examine()
    if json:
        return show.emit(found)
    for section, values in found.items():
        show.line(section)
        for name, value in values.items():
            show.line(f"  {name}: {_text(value)}")


def _check(files: list[str], json: bool) -> None:
    from ..conformance import check_rules
    from ..core import UserError
    from ..memory import load_rules

    options.use_rules(files)
    with show.Progress("checking", unit="checks") as progress:
        rows = check_rules(load_rules(*files), progress=progress)
    broken = [row for row in rows if row["broken"]]
    if json:
        show.emit({"checks": rows})
    else:
        show.table([row | {"broken": row["broken"] or "-"} for row in rows])
    if not broken and not json:
        show.note(f"all {len(rows)} checks hold")
    if broken:
        first = broken[0]
        said = f"{first['check']} on {first['family']}: {first['broken']}"
        raise UserError(f"rule {first['rule']!r} breaks {len(broken)} of {len(rows)} checks; {said}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "none"
    return show.cell(value)
