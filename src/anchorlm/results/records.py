"""A row's figures in one small file, which outlives the weights that they were measured on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..core import UserError, atomic_file
from ..data import TokenStore
from ..eval.parts import FORMAT
from ..plan import Plan
from ..settings import Strict, checked
from ..train.folder import first_change, identity_of
from .figures import is_figure, is_place
from .measure import Cell
from .rows import Built


class Identity(Strict):
    """What a row is. data: hashes of its training text and tokenizer, None when not trained or not known."""

    row: str
    recipe: dict[str, Any] | None
    plan: dict[str, Any]
    base: str | None
    data: dict[str, str] | None
    start: Identity | None


class Figure(Strict):
    """One measured cell: all that fixes it but the row's weights, its value, and what it was measured with."""

    key: dict[str, Any]
    value: dict[str, Any]
    environment: dict[str, Any]


class Record(Strict):
    """What was measured of a row, and of which weights. tokens: seen in training; training_tokens_per_s: by this row's
    own; None when not known."""

    format: Literal[1] = 1
    identity: Identity
    digest: str
    trained_parameters: int = Field(lt=2**63)
    tokens: int | None = Field(lt=2**63)
    training_tokens_per_s: float | None = None
    figures: tuple[Figure, ...]

    def cells(self, asked: Iterable[Cell]) -> dict[str, Figure]:
        """The figures that are asked for, by the cell's name; another limit or text makes another figure."""
        found = {cell.name: next((f for f in self.figures if f.key == key_of(cell)), None) for cell in asked}
        return {name: figure for name, figure in found.items() if figure}


def identity(row: Built, store: TokenStore | None) -> Identity:
    """Of the table's present row. store: its training text; the folder of a trained row says what it was."""
    facts: dict[str, Any] = {"recipe": None, "plan": row.plan.to_dict(), "base": row.place.fingerprint, "data": None}
    if row.recipe is not None:
        facts = identity_of(row.recipe, row.plan, store, row.place.fingerprint)
        facts |= {"data": row.trained_on()} if row.ready else {}
    start = identity(row.start, store) if row.start else None
    return Identity(row=row.row.name, start=start, **json.loads(json.dumps(facts)))


def difference(stored: Identity, wanted: Identity, layers: int) -> str | None:
    """The first thing in which two rows differ; None when they are the same. A text that is not known is not compared.

    Fields that did not exist when the first was stored count as their defaults.
    """
    if (stored.recipe is None) != (wanted.recipe is None):
        return "it was not trained" if stored.recipe is None else "it was trained"
    skipped = {"start"} if stored.data and wanted.data else {"start", "data"}
    old, new = (side.model_dump(exclude=skipped) for side in (stored, wanted))
    try:
        old["plan"] = Plan.from_dict(stored.plan, layers).to_dict()
    except UserError as error:
        return str(error)
    return first_change(old, new) or _other_start(stored.start, wanted.start, layers)


def _other_start(stored: Identity | None, wanted: Identity | None, layers: int) -> str | None:
    if stored and wanted:
        found = difference(stored, wanted, layers)
        return found and f"of the row it starts from, {found}"
    names = [side.row if side else "base" for side in (stored, wanted)]
    return None if stored is wanted else f"start was {names[0]!r}, now {names[1]!r}"


def read_record(path: Path) -> Record:
    """Raises UserError for a damaged file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        environments = data.pop("environments")
        for figure in data["figures"]:
            figure["environment"] = environments[figure["environment"]]
        whole = all(is_figure(figure["value"]) and is_place(figure["environment"]) for figure in data["figures"])
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"record {path} is damaged; remove it")
    return checked(Record, data, f"record {path}")


def write_record(path: Path, record: Record) -> None:
    """A figure on each line; the environments they share stand once. A file that says so already is left alone."""
    values = record.model_dump(mode="json")
    figures, environments = values.pop("figures"), []
    for figure in figures:
        if figure["environment"] not in environments:
            environments.append(figure["environment"])
        figure["environment"] = environments.index(figure["environment"])
    values["environments"] = environments
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    rows = ",\n".join(json.dumps(figure) for figure in figures)
    text = "{" + ",\n".join([*lines, f'"figures": [\n{rows}\n]']) + "}\n"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    with atomic_file(path) as file:
        file.write(text)


def key_of(cell: Cell) -> dict[str, Any]:
    """What a record keeps the cell's figure under."""
    return json.loads(json.dumps(cell.fixed() | {"format": FORMAT}))
