"""Every check on every family for rules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from ..core import UserError
from ..rules import known_rule
from .checks import CHECKS
from .tiny import FAMILIES, tiny

WINDOW = 5
Row = dict[str, str | None]


def check_rules(
    rules: Iterable[str],
    slot: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """One row a rule, family and check, and what is `broken`: None where the check holds.

    The model has two windowed layers: the first writes a slot, both read it. slot: fields of it beside the rule's own
    defaults, such as {"lag": "self"}. Raises UserError for an unknown rule and for fields that do not fit.
    """
    models = list(product(rules, FAMILIES))
    rows: list[Row] = []
    for rule, family in models:
        model = tiny(_plan(rule, dict(slot or {})), family)
        for name, check in CHECKS.items():
            rows.append({"rule": rule, "family": family, "check": name, "broken": _broken(check, model)})
            if progress is not None:
                progress(len(rows), len(models) * len(CHECKS))
    return rows


def _plan(rule: str, slot: dict[str, Any]) -> dict[str, Any]:
    """Two windows; with a slot of what leaves the window they have no sinks."""
    own = {"write": 0, "read": [0, 1], "rule": rule, "chunk": 4} | slot
    leaves = {**known_rule(rule, "rule").slot_defaults, **slot}.get("lag") == "evicted"
    return {"attention": {"kind": "window", "window": WINDOW, "sinks": 0 if leaves else 2}, "slots": {"own": own}}


def _broken(check: Callable[[Any], None], model: Any) -> str | None:
    try:
        check(model)
    except UserError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a rule of somebody else's may raise anything
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None
