"""The table's result as plain data: every row, also those that were not run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..describe import bytes_at
from ..eval.stats import bootstrap_share
from ..plan import ModelShape, Plan
from ..reach import Reach
from .archive import Known
from .measure import GROUPS, RECALL, RULER, SPEED, needle_name, needle_texts, needles_in_window
from .plans import beyond_window
from .records import Record
from .rows import Built
from .table import Row, Table

KIND = "results"  # of the file that holds a table
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
        "kind": KIND,
        "table": table.model_dump(mode="json", exclude={"rows"}),
        "texts": dict(texts),
        "needle_texts": needle_texts(table),
        "needles_in_window": needles_in_window(table),
        "gap": {text: _by_group(_whole, table, rows) for text, rows in gaps.items()},
        "alike": [_alike(names, known) for names in table.alike],
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
    facts |= {"repeats": row.repeats, "against": row.against}
    if built is None or known is None:
        return {**facts, "plan": None, "missing": [row.needs], "texts": {}, "needles": {}}
    record, cells = known.record, {name: figure.value for name, figure in known.figures.items()}
    return {
        **facts,
        "plan": built.plan.to_dict(),
        "control": _control(built.plan, row),
        "full_share": sum(reach == Reach() for reach in built.plan.layers) / len(built.plan.layers),
        "state_bytes": {str(n): bytes_at(built.plan, shape, n) for n in (table.context, FAR)},
        "beyond_window": beyond_window(built.plan, table, shape),
        "trained_parameters": record.trained_parameters if record else None,
        "tokens": record.tokens if record else None,
        "training_tokens_per_s": record.training_tokens_per_s if record else None,
        "missing": known.missing,
        "texts": {text: _text(table, row.name, rows) for text, rows in gaps.items() if rows.get(row.name)},
        "paired": {text: _paired(table, row, rows) for text, rows in gaps.items()} if row.against else {},
        "needles": {w: _needles(table, w, cells) for w in table.wordings},
        **{name: cells[name] for name in (RECALL, RULER, SPEED) if name in cells},
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
    groups = {group: cell.get("groups", {}).get(group) for group in GROUPS}
    return {"n": cell["n"], "note": cell.get("note"), **groups, "gap": _by_group(_share, table, rows, name)}


def _by_group(figure: Callable[..., Any], table: Table, *of: Any) -> dict[str, Any]:
    """The figure of each group of targets that the table's gap is stated for."""
    return {group: figure(table, group, *of) for group in (table.gap.groups if table.gap else ())}


def _sums(cell: Any, group: str, column: int = 0) -> np.ndarray:
    """Of a group's targets in every document: nats, or with column 1 their number."""
    return np.array([document[group][column] for document in cell["documents"]], float)


def _measured(rows: Mapping[str, Any], *names: str) -> list[Any] | None:
    """The perplexity cells of these rows, when all have documents."""
    cells = [rows.get(name) for name in names]
    return cells if all(cell and cell.get("documents") for cell in cells) else None


def _whole(table: Table, group: str, rows: Mapping[str, Any]) -> dict[str, Any] | None:
    """Nats per target between the two rows of the gap, None where the text has none; None until both are measured."""
    cells = table.gap and _measured(rows, table.gap.control, table.gap.teacher)
    return (_above(cells, group, table.seed) or {"nats": None, "interval": None}) if cells else None


def _paired(table: Table, row: Row, rows: Mapping[str, Any]) -> dict[str, Any]:
    """Nats per target of each group above the row that this one is set against, by document; None until both are."""
    cells = _measured(rows, row.name, row.against)
    return {group: _above(cells, group, table.seed) if cells else None for group in GROUPS}


def _above(cells: Sequence[Any], group: str, seed: int) -> dict[str, Any] | None:
    """The first cell's nats per target above the second's; None without targets."""
    nats, counts = _sums(cells[0], group) - _sums(cells[1], group), _sums(cells[0], group, 1)
    if not counts.any():
        return None
    return {"nats": float(nats.sum() / counts.sum()), "interval": bootstrap_share(nats, counts, seed)}


def _share(table: Table, group: str, rows: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """How much of the gap a row closes on a group's targets, paired by document."""
    cells = table.gap and _measured(rows, name, table.gap.control, table.gap.teacher)
    if not cells:
        return None
    own, control, teacher = (_sums(cell, group) for cell in cells)
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


def _alike(names: Sequence[str], known: Mapping[str, Known]) -> dict[str, Any]:
    """Whether those of the rows that are known were trained on the same tokens in the same order, on how many, and
    whether rows that were generated in the text are among them."""
    records = {name: row.record for name in names if (row := known.get(name)) and row.record}
    trained = {name: record for name, record in records.items() if record.identity.data}
    one = next(iter(trained.values()), None)
    return {
        "rows": list(trained),
        "same": len({_read(record) for record in trained.values()}) == 1,
        "tokens": one and one.tokens,
        "text": one and one.identity.data and one.identity.data["texts"],
        "generated": bool(one and one.identity.recipe and any(one.identity.recipe["data"]["mix"].values())),
    }


def _read(record: Record) -> str:
    """All that fixes which tokens a row was trained on, and in which order."""
    recipe = record.identity.recipe or {}
    facts = [record.tokens, record.identity.data, recipe["data"], recipe["seed"]]
    return json.dumps(facts, sort_keys=True)
