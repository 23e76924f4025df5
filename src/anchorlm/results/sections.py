"""Parts of the page that only some tables have: recall, speed, and the spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .core_table import markdown_table
from .measure import FACTS, RECALL, SPEED, WRITTEN

Row = dict[str, Any]


def recall_lines(result: dict[str, Any]) -> list[str]:
    """Facts asked for at the end of a text; nothing for a table without them."""
    table = result["table"]
    if not table["recall"]:
        return []
    lines = [["row", "right", "95 %", "tokens right"]]
    lines += [[row["name"], *_recalled(row.get(RECALL))] for row in result["rows"]]
    return [
        "## Recall, held-out wordings",
        "",
        f"{table['recall']} texts of {table['context']:,} tokens of the test text, each with {FACTS} facts, all asked "
        "for at its end from beyond the window, worded as no generated row ever is. Right: each token of an answer is "
        "the most likely one after the true ones before it. Intervals: Wilson, as if answers in one text were "
        "independent.",
        "",
        *markdown_table(lines),
        "",
    ]


def _recalled(cell: Row | None) -> list[str]:
    if cell is None or cell["value"] is None:
        return [cell["note"] if cell else "not run", "-", "-"]
    right = f"{round(cell['value'] * cell['n'])}/{cell['n']}"
    return [right, span(cell["interval"], "{:.0%}"), f"{cell['digits']['value']:.0%}"]


def speed_lines(result: dict[str, Any]) -> list[str]:
    """Reading and writing beside full attention; nothing for a table that does not measure it."""
    table = result["table"]
    if not table["speed"]:
        return []
    lines = [["row", "read tokens/s", "over full", "write tokens/s", "over full"]]
    lines += [[row["name"], *_speeds(row.get(SPEED))] for row in result["rows"]]
    return [
        "## Speed",
        "",
        f"{table['speed']:,} random tokens read in blocks and {WRITTEN} written, one sequence, in turns with the same "
        "weights and adapters under full attention; over full: this row's speed over that one's, medians of the same "
        "run. A row of full attention is compared with itself, which shows the noise.",
        "",
        *markdown_table(lines),
        "",
    ]


def _speeds(cell: Row | None) -> list[str]:
    if cell is None:
        return ["not run", "-", "-", "-"]
    found = cell["speeds"]
    return [text for kind in ("read", "write") for text in (_rate(found[kind]), f"{found[f'{kind}_ratio']:.2f}")]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def seed_lines(result: dict[str, Any]) -> list[str]:
    """Mean and range of each row that was trained with several seeds; nothing when none was."""
    groups = _repeated(result["rows"])
    if not groups:
        return []
    lines = [["row", "seeds", *(head for head, _ in _spread_columns(result))]]
    for name, rows in groups.items():
        lines.append(
            [name, str(len(rows)), *(spread([get(row) for row in rows]) for _, get in _spread_columns(result))]
        )
    return [
        "## Spread over seeds",
        "",
        "Mean of the seeds, and the least and the most of them. The seed sets new weights and the order of the "
        "training rows; what is asked in evaluation is the same.",
        "",
        *markdown_table(lines),
        "",
    ]


def _repeated(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows that were trained with other seeds too: name -> all of them."""
    found: dict[str, list[Row]] = {row["name"]: [row] for row in rows}
    for row in rows:
        if row["repeats"]:
            found[row["repeats"]].append(row)
    return {name: group for name, group in found.items() if len(group) > 1}


def _spread_columns(result: dict[str, Any]) -> list[tuple[str, Callable[[Row], float | None]]]:
    columns: list[tuple[str, Callable[[Row], float | None]]] = []
    for text in result["texts"]:
        columns.append((f"perplexity, {text}", lambda row, text=text: _ppl(row, text, "all")))
        columns.append((f"cross-window, {text}", lambda row, text=text: _ppl(row, text, "cross_window")))
    if result["table"]["recall"]:
        columns.append(("recall, share right", lambda row: row.get(RECALL, {}).get("value")))
    return columns


def _ppl(row: Row, text: str, group: str) -> float | None:
    found = (row["texts"].get(text) or {}).get(group)
    return found["ppl"] if found else None


def spread(values: list[float | None]) -> str:
    """Mean, least and most of what is known, as a cell of a table."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{sum(known) / len(known):.2f} ({min(known):.2f} to {max(known):.2f})"


def span(interval: list[float] | None, pattern: str) -> str:
    """An interval as a cell of a table; - where there is none."""
    if interval is None or not all(map(math.isfinite, interval)):
        return "-"
    return " to ".join(pattern.format(end) for end in interval)
