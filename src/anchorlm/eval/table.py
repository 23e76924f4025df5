"""Results as rows of text, models side by side."""

from __future__ import annotations

from typing import Any

from anchorlm.eval.options import EvalOptions
from anchorlm.eval.suite import span
from anchorlm.eval.suites import SUITES


def title(result: dict[str, Any]) -> str:
    """What the table shows; the context only where the suite's texts are as long as it says."""
    suite, options = result["suite"], result["options"]
    length = f", context {options['context']:,} tokens" if SUITES[suite].lengths(EvalOptions()) else ""
    return f"{suite}{length}, seed {options['seed']}"


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of one suite's result, every cell a string."""
    suite = SUITES[result["suite"]]
    rows = [
        [row["model"], *(suite.line(row) if row["value"] is not None else _noted(row, len(suite.heads)))]
        for row in result["rows"]
    ]
    return ["model", *suite.heads], rows


def _noted(row: dict[str, Any], width: int) -> list[str]:
    return [row["note"], *[""] * (width - 1)]


def lines(heads: list[str], rows: list[list[str]]) -> list[str]:
    """The same as aligned plain text: names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return ["  ".join(_pad(cell, width, i) for i, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in [heads, *rows]]  # fmt: skip


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def details(result: dict[str, Any]) -> list[str]:
    """The second table of a suite that has one, as lines after an empty one."""
    detail = SUITES[result["suite"]].detail
    measured = any(row["value"] is not None for row in result["rows"])
    return ["", *lines(*detail(result)), ""] if detail and measured else []


def pairs(result: dict[str, Any]) -> list[str]:
    """One line for each further model: the first one beside it, sample by sample."""
    first, *others = result["rows"]
    return [line for row in others for line in _pair(first["model"], row)]


def _pair(first: str, row: dict[str, Any]) -> list[str]:
    for name, word, pattern in (("first_over_this", "over", "{:.3f}"), ("first_minus_this", "less", "{:+.1%}")):
        found = row.get(name)
        if found and found["value"] is not None:
            interval = span(found["interval"], pattern)
            return [f"{first} {word} {row['model']}, paired: {pattern.format(found['value'])} "
                    f"(95 %: {interval}), p = {found['p']:.2g}"]  # fmt: skip
    return []
