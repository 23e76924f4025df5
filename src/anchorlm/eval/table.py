"""Results as rows of text, models side by side."""

from __future__ import annotations

from typing import Any

HEADS = {
    "ppl": ["model", "perplexity", "95 %", "1st half", "2nd half", "cross-window", "bits/byte", "documents"],
    "niah": ["model", "exact", "95 %", "digits", "needles", "by length"],
}


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of one suite's result, every cell a string."""
    line = _ppl_line if result["suite"] == "ppl" else _niah_line
    return HEADS[result["suite"]], [
        line(row) if row["value"] is not None else _noted(row, len(HEADS[result["suite"]])) for row in result["rows"]
    ]


def _noted(row: dict[str, Any], width: int) -> list[str]:
    return [row["model"], row["note"], *[""] * (width - 2)]


def _ppl_line(row: dict[str, Any]) -> list[str]:
    groups = [row["groups"].get(name) for name in ("first_half", "second_half", "cross_window")]
    halves = [f"{group['ppl']:.2f}" if group else "-" for group in groups]
    return [row["model"], f"{row['value']:.2f}", _span(row["interval"], "{:.2f}"), *halves,
            f"{row['bits_per_byte']:.3f}", str(row["n"])]  # fmt: skip


def _niah_line(row: dict[str, Any]) -> list[str]:
    digits = f"{row['digits']['value']:.0%}"
    return [row["model"], f"{row['value']:.0%}", _span(row["interval"], "{:.0%}"), digits, str(row["n"]), _lengths(row)]


def _lengths(row: dict[str, Any]) -> str:
    """Hits of each length, as in 2,048: 12/20."""
    shares: dict[int, list[int]] = {}
    for cell in row["cells"]:
        hits = shares.setdefault(cell["length"], [0, 0])
        hits[0] += sum(answer["exact"] for answer in cell.get("answers", ()))
        hits[1] += cell["n"]
    return "; ".join(f"{length:,}: {hit}/{n}" if n else f"{length:,}: -" for length, (hit, n) in shares.items())


def _span(interval: list[float] | None, pattern: str) -> str:
    return "-" if interval is None else " to ".join(pattern.format(end) for end in interval)


def lines(heads: list[str], rows: list[list[str]]) -> list[str]:
    """The same as aligned plain text: names to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return ["  ".join(_pad(cell, width, i) for i, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in [heads, *rows]]  # fmt: skip


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)
