"""Parts of the page that only some tables have: recall, speed, and the spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .core_table import markdown_table
from .measure import FACTS, GROUPS, RECALL, RULER, SPEED, WRITTEN

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


def ruler_lines(result: dict[str, Any]) -> list[str]:
    """RULER task by task; nothing for a table that does not ask it."""
    asked = result["table"]["ruler"]
    if not asked:
        return []
    scores = {row["name"]: _by_task(row.get(RULER)) for row in result["rows"]}
    tasks = list(dict.fromkeys(task for found in scores.values() for task in found))
    rows = [("mean, 95 %", [_mean(row.get(RULER)) for row in result["rows"]])]
    rows += [(task, [scores[row["name"]].get(task, "-") for row in result["rows"]]) for task in tasks]
    lengths = " and ".join(f"{length:,}" for length in asked["lengths"])
    return [
        "## RULER by task",
        "",
        f"{asked['samples']} samples of each task in {lengths} tokens, made from the test text; the mean share of "
        "right answers in percent, as published. Mean: of all tasks, with a bootstrap over samples.",
        "",
        *markdown_table([["task", *(row["name"] for row in result["rows"])], *([name, *of] for name, of in rows)]),
        "",
    ]


def _by_task(cell: Row | None) -> dict[str, str]:
    """Task -> its score over all lengths, in percent."""
    found: dict[str, list[float]] = {}
    for part in cell["by_task"] if cell else ():
        if part["value"] is not None:
            found.setdefault(part["task"], []).append(part["value"])
    return {task: f"{100 * sum(values) / len(values):.0f}" for task, values in found.items()}


def _mean(cell: Row | None) -> str:
    if cell is None or cell["value"] is None:
        return cell["note"] if cell else "not run"
    ends = span(cell["interval"] and [100 * end for end in cell["interval"]], "{:.0f}")
    return f"{100 * cell['value']:.0f} ({ends})"


def pair_lines(result: dict[str, Any]) -> list[str]:
    """Rows beside the row they are set against, where both are on the page; nothing for a table that sets none."""
    rows = {row["name"]: row for row in result["rows"]}
    pairs = [(row, rows[row["against"]]) for row in rows.values() if row["against"] in rows]
    if not pairs:
        return []
    heads = [f"{text}, {GROUP_HEADS[group]}" for text in result["texts"] for group in GROUPS]
    lines = [["row", "against", "bytes", *(part for head in heads for part in (head, "95 %"))]]
    lines += [[row["name"], other["name"], _bytes_of(row, other), *_pair_cells(row, result["texts"])]
              for row, other in pairs]  # fmt: skip
    return [
        "## Side by side",
        "",
        "Nats a token above the row that it is set against: below 0, this row is better. Intervals: bootstrap over "
        "pieces of the text, both rows on the same pieces. Bytes: what either has beyond window and sinks.",
        "",
        *markdown_table(lines, texts=2),
        "",
    ]


GROUP_HEADS = {"all": "all tokens", "cross_window": "cross-window"}


def _bytes_of(row: Row, other: Row) -> str:
    sizes = [side.get("beyond_window") for side in (row, other)]
    return "-" if None in sizes else f"{sizes[0] / 1e6:.2f} MB for {sizes[1] / 1e6:.2f} MB"


def _pair_cells(row: Row, texts: Any) -> list[str]:
    found = [row.get("paired", {}).get(text, {}).get(group) for text in texts for group in GROUPS]
    return [part for one in found for part in ((f"{one['nats']:+.3f}", span(one["interval"], "{:+.3f}")) if one
            else ("-", "-"))]  # fmt: skip


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
