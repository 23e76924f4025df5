"""Whether what a file holds is a figure as a cell measures it, so that a damaged one never reaches the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

PLACE = {"dtype": str, "device": str, "processor": str | None, "accelerator": str | None, "threads": int,
         "packages": dict}  # fmt: skip
SPEEDS = ("read", "write", "read_ratio", "write_ratio")


def is_figure(value: Any) -> bool:
    """Whether the value has all that a page reads of it, each of its kind."""
    if not isinstance(value, Mapping) or not {"value", "interval", "n"} <= value.keys():
        return False
    if not _count(value["n"]) or not all(kind(value[name]) for name, kind in KINDS.items() if name in value):
        return False
    return isinstance(value.get("note"), str) if value["value"] is None else _whole(value)


def _whole(value: Mapping[str, Any]) -> bool:
    """Whether perplexity has its groups, and as many documents as it says."""
    if value.get("metric") != "perplexity":
        return True
    documents, groups = value.get("documents"), value.get("groups")
    return bool(documents and groups and groups.get("all")) and len(documents) == value["n"]


def is_place(value: Any) -> bool:
    """Whether the value says what a figure was measured with."""
    return isinstance(value, Mapping) and all(isinstance(value.get(name), kind) for name, kind in PLACE.items())


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _maybe(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or kind(value)


def _interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(end, int | float) for end in value)


def _group(value: Any) -> bool:
    return isinstance(value, Mapping) and _number(value.get("ppl")) and _maybe(_interval)(value.get("interval"))


def _groups(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_maybe(_group), value.values()))


def _sums(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_number, value))


def _documents(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, Mapping) and {"all", "cross_window"} <= one.keys() and all(map(_sums, one.values()))
        for one in value
    )


def _digits(value: Any) -> bool:
    return isinstance(value, Mapping) and _maybe(_number)(value.get("value"))


def _speeds(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_number(value.get(name)) for name in SPEEDS)


def _tasks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, Mapping) and isinstance(one.get("task"), str) and _maybe(_number)(one.get("value"))
        for one in value
    )


KINDS: dict[str, Callable[[Any], bool]] = {
    "value": _maybe(_number), "interval": _maybe(_interval), "groups": _groups, "documents": _documents,
    "digits": _digits, "speeds": _speeds, "by_task": _tasks,
}  # fmt: skip
