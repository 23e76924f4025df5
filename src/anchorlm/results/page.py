"""The table's result as plain data and as a page of Markdown: every row, also those that were not run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..describe import bytes_at
from ..eval.stats import bootstrap_share
from ..plan import ModelShape, Plan
from .archive import Known
from .core_table import markdown_table, short
from .measure import needle_name, needle_texts
from .plans import beyond_window
from .rows import Built
from .table import BASE, Row, Table

FAR = 32768  # tokens at which a state that grows is stated beside one that does not
Cells = Mapping[str, Any]


def result(
    table: Table,
    built: Mapping[str, Built],
    shape: ModelShape,
    known: Mapping[str, Known],
    texts: Mapping[str, Any],
    now: dict[str, Any],
) -> dict[str, Any]:
    """What results.json holds. now: the environment, in case nothing is measured yet."""
    found = {name: {cell: figure.value for cell, figure in row.figures.items()} for name, row in known.items()}
    gaps = {text: {name: _perplexity(cells, text) for name, cells in found.items()} for text in texts}
    return {
        "kind": "results",
        "table": table.model_dump(mode="json", exclude={"rows"}),
        "texts": dict(texts),
        "needle_texts": needle_texts(table),
        "gap": {text: _whole(table, rows) for text, rows in gaps.items()},
        "rows": [_row(table, row, built.get(row.name), shape, known.get(row.name), gaps) for row in table.rows],
        "environments": _environments(known) or [{**now, "rows": []}],
    }


def _environments(known: Mapping[str, Known]) -> list[dict[str, Any]]:
    """Each environment in which some figure was measured, and the rows that have such figures."""
    of_rows = {name: [figure.environment for figure in row.figures.values()] for name, row in known.items()}
    found: list[dict[str, Any]] = []
    for one in (one for own in of_rows.values() for one in own):
        if one not in found:
            found.append(one)
    return [{**one, "rows": [name for name, own in of_rows.items() if one in own]} for one in found]


def _row(
    table: Table, row: Row, built: Built | None, shape: ModelShape, known: Known | None, gaps: Mapping[str, Any]
) -> dict[str, Any]:
    facts = {"name": row.name, "note": row.note, "start": row.start, "recipe": row.recipe}
    if built is None or known is None:
        return {**facts, "plan": None, "missing": [row.needs], "texts": {}, "needles": {}}
    record, cells = known.record, {name: figure.value for name, figure in known.figures.items()}
    return {
        **facts,
        "plan": built.plan.to_dict(),
        "control": _control(built.plan, row),
        "state_bytes": {str(n): bytes_at(built.plan, shape, n) for n in (table.context, FAR)},
        "beyond_window": beyond_window(built.plan, table, shape),
        "trained_parameters": record.trained_parameters if record else None,
        "tokens": record.tokens if record else None,
        "missing": known.missing,
        "texts": {text: _text(table, row.name, rows) for text, rows in gaps.items() if rows.get(row.name)},
        "needles": {w: _needles(table, w, cells) for w in table.wordings},
    }


def _control(plan: Plan, row: Row) -> dict[str, Any] | None:
    """The window that was found for a row of the same bytes as another."""
    named = row.same_bytes
    return {"of": named, "window": plan.common_window} if named else None


def _perplexity(cells: Cells, text: str) -> dict[str, Any] | None:
    return cells.get(f"perplexity {text}")


def _text(table: Table, name: str, rows: Mapping[str, Any]) -> dict[str, Any]:
    """Perplexity of one row on one text, and the share of the gap that it closes."""
    cell = rows[name]
    groups = {group: cell.get("groups", {}).get(group) for group in ("all", "cross_window")}
    return {"n": cell["n"], "note": cell.get("note"), **groups, "gap": _share(table, name, rows)}


def _sums(cell: Any, column: int = 0) -> np.ndarray:
    """Of the cross-window targets of every document: nats, or with column 1 their number."""
    return np.array([document["cross_window"][column] for document in cell["documents"]], float)


def _measured(rows: Mapping[str, Any], *names: str) -> list[Any] | None:
    """The perplexity cells of these rows, when all have documents."""
    cells = [rows.get(name) for name in names]
    return cells if all(cell and cell.get("documents") for cell in cells) else None


def _whole(table: Table, rows: Mapping[str, Any]) -> dict[str, Any] | None:
    """Nats per cross-window target between the two rows of the gap; None until both are measured."""
    cells = table.gap and _measured(rows, table.gap.control, table.gap.teacher)
    if not cells:
        return None
    nats, counts = _sums(cells[0]) - _sums(cells[1]), _sums(cells[0], 1)
    return {"nats": float(nats.sum() / counts.sum()), "interval": bootstrap_share(nats, counts)}


def _share(table: Table, name: str, rows: Mapping[str, Any]) -> dict[str, Any] | None:
    """How much of the gap a row closes on cross-window targets, paired by document."""
    cells = table.gap and _measured(rows, name, table.gap.control, table.gap.teacher)
    if not cells:
        return None
    own, control, teacher = (_sums(cell) for cell in cells)
    parts, wholes = control - own, control - teacher
    if wholes.sum() <= 0:
        return None
    return {"value": float(parts.sum() / wholes.sum()), "interval": bootstrap_share(parts, wholes, table.seed)}


def _needles(table: Table, wording: str, cells: Cells) -> dict[str, Any]:
    """By length: hits, needles, interval, and the share of digits right; or why nothing was measured."""
    found = {str(n): cells.get(needle_name(wording, n)) for n in table.lengths}
    return {
        n: {
            "n": cell["n"],
            "hits": None if cell["value"] is None else round(cell["value"] * cell["n"]),
            "interval": cell["interval"],
            "digits": cell["digits"]["value"] if "digits" in cell else None,
            "note": cell.get("note"),
        }
        for n, cell in found.items()
        if cell
    }


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    table, rows = result["table"], result["rows"]
    parts = [
        f"# {table['title']}",
        "",
        f"Base {table['base']}; window {table['window']} with {table['sinks']} sinks wherever a row says nothing else; "
        f"context {table['context']:,} tokens.",
        "",
        *_what(table, rows),
    ]
    for text in result["texts"]:
        parts += _quality(result, text)
    for wording in table["wordings"]:
        parts += _needle_lines(result, wording)
    parts += _missing(rows)
    parts += _measured_with(table, result["environments"])
    return "\n".join(parts)


def _what(table: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    context = table["context"]
    heads = [f"state {short(n)}" for n in (context, FAR)]
    lines = [["row", "what it is", *heads, "beyond window", "trained", "tokens seen"]]
    for row in rows:
        states = [_bytes(row.get("state_bytes", {}).get(str(n))) for n in (context, FAR)]
        states.append(_bytes(row.get("beyond_window")))
        figures = [_count(row.get(name)) for name in ("trained_parameters", "tokens")]
        lines.append([row["name"], _note(row), *states, *figures])
    return [
        "State: bytes of one sequence at its fullest, keys and values in bfloat16, fast weights in float32; momentum, "
        f"buffers and sinks included. Beyond window: what of it, at {short(context)}, window and sinks alone lack. "
        "Trained: parameters of memory and LoRA. Tokens seen: in training, generated rows and the training of the row "
        "it starts from included.",
        "",
        *markdown_table(lines, texts=2),
        "",
    ]


def _note(row: dict[str, Any]) -> str:
    control = row.get("control")
    parts = [row["note"]] if row["note"] else []
    if control:
        parts.append(f"window {control['window']:,}: the bytes of `{control['of']}`")
    if row["start"] != BASE:
        parts.append(f"starts from `{row['start']}`")
    return "; ".join(parts) or "-"


def _quality(result: dict[str, Any], text: str) -> list[str]:
    table, facts, gap = result["table"], result["texts"][text], result["gap"][text]
    count = max((row["texts"][text]["n"] for row in result["rows"] if text in row["texts"]), default=0)
    heads = ["row", "perplexity", "95 %", "cross-window", "95 %", "gap closed", "95 %"]
    lines = [[row["name"], *_quality_cells(row, text)] for row in result["rows"]]
    return [
        f"## Perplexity, {text} text",
        "",
        f"{_names(facts)} (text {facts['hash']}) in pieces of {table['context']:,} tokens ({count} of them); "
        f"cross-window: tokens whose bigram was last seen more than {table['window']} tokens before. Intervals: "
        f"bootstrap over pieces, paired where rows are compared. {_gap_line(table, gap)}",
        "",
        *markdown_table([heads, *lines]),
        "",
    ]


def _gap_line(table: dict[str, Any], gap: dict[str, Any] | None) -> str:
    if not table["gap"]:
        return ""
    names = f"`{table['gap']['control']}` and `{table['gap']['teacher']}`"
    if gap is None:
        return f"Gap closed: the share of the nats per cross-window token between {names}; not both are measured yet."
    span = "" if gap["interval"] is None else f" (95 %: {gap['interval'][0]:.3f} to {gap['interval'][1]:.3f})"
    return f"Gap closed: the share of the {gap['nats']:.3f} nats{span} per cross-window token between {names}."


def _names(facts: dict[str, Any]) -> str:
    shown = [name.rpartition("/")[2] for name in facts["names"][:4]]
    more = facts["documents"] - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _quality_cells(row: dict[str, Any], text: str) -> list[str]:
    found = row["texts"].get(text)
    if found is None:
        return ["not run", *["-"] * 5]
    if not found["all"]:
        return [found["note"], *["-"] * 5]
    cells: list[str] = []
    for group in (found["all"], found["cross_window"]):
        cells += [f"{group['ppl']:.2f}", _span(group["interval"], "{:.2f}")] if group else ["-", "-"]
    gap = found["gap"]
    return cells + ([f"{gap['value']:.0%}", _span(gap["interval"], "{:.0%}")] if gap else ["-", "-"])


def _needle_lines(result: dict[str, Any], wording: str) -> list[str]:
    table, rows, count = result["table"], result["rows"], result["needle_texts"]
    lengths = [str(n) for n in table["lengths"]]
    if not lengths:
        return []
    lines = [["row", *(short(n) for n in lengths)]]
    lines += [[row["name"], *(_needle(row["needles"].get(wording, {}).get(n)) for n in lengths)] for row in rows]
    kind = "held-out wordings" if wording == "heldout" else "training wordings"
    return [
        f"## Needles, {kind}",
        "",
        f"{WORDINGS[wording]} A seven-digit number, one a prompt, spread over the depth of {count} pieces of the test "
        "text for each length; right answers of all, and the 95 % interval of their share (Wilson), as if needles in "
        "one piece were independent. -: beyond the positions of the base, where some layer sees all.",
        "",
        *markdown_table(lines),
        "",
    ]


WORDINGS = {
    "heldout": "Facts and cues worded as no generated row ever is.",
    "train": "Facts and cues worded as in the needle rows that a recipe may mix in; recall rows are worded otherwise.",
}


def _needle(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "not run"
    if cell["hits"] is None:
        return "-"
    return f"{cell['hits']}/{cell['n']} ({_span(cell['interval'], '{:.0%}')})"


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"- `{row['name']}`: {reasons(row['missing'])}" for row in rows if row["missing"]]
    return ["## Not run", "", *lines, ""] if lines else []


def reasons(missing: list[str]) -> str:
    return "; ".join(missing) if len(missing) <= 4 else f"{'; '.join(missing[:3])} and {len(missing) - 3} more cells"


def _measured_with(table: dict[str, Any], environments: list[dict[str, Any]]) -> list[str]:
    """One line, or one for each environment when rows were not all measured in the same."""
    lines = [_environment(facts) for facts in environments]
    if len(lines) == 1:
        return [f"Seed {table['seed']}, {lines[0]}.", ""]
    names = [", ".join(f"`{name}`" for name in facts["rows"]) for facts in environments]
    parts = [f"- {line}: {rows}" for line, rows in zip(lines, names, strict=True)]
    return [f"Seed {table['seed']}. Rows were measured with different things:", "", *parts, ""]


def _environment(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    where = facts["processor"] if facts["device"] == "cpu" else facts["accelerator"] or facts["device"]
    return f"{facts['dtype']}, {facts['threads']} threads, {where}; {versions}"


def _bytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f} MB"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _span(interval: list[float] | None, pattern: str) -> str:
    if interval is None or not all(map(math.isfinite, interval)):
        return "-"
    return " to ".join(pattern.format(end) for end in interval)
