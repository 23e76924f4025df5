"""A table as data: which rows there are, how each is trained, and what is measured of all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..core import MANY, UserError, suggest
from ..settings import MixSettings, Recipe, Strict, checked, load_recipe, parse_yaml

BASE = "base"
OTHER_VERBS = {"mad": "anchorlm mad", "compare": "anchorlm compare"}  # packaged tables of another kind
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


class Training(Strict):
    """What every trained row's recipe is set to, unless the row says otherwise."""

    set: dict[str, Any] = {}  # dotted recipe keys
    mix: MixSettings = MixSettings()


class Gap(Strict):
    """The two rows between which every other one stands: the share of their difference that a row closes.

    groups: the targets that it is stated for.
    """

    control: str
    teacher: str
    groups: tuple[Literal["cross_window", "all"], ...] = Field(("cross_window",), min_length=1)


class RulerSettings(Strict):
    """RULER as the suite of that name asks it: samples of each task and length. answer_tokens: most of an answer."""

    lengths: tuple[int, ...] = Field((512,), min_length=1)
    samples: int = Field(5, ge=1, le=MANY)
    tasks: tuple[str, ...] = ()  # none: all that need no file of questions
    answer_tokens: int | None = Field(None, ge=1)


class Row(Strict):
    """One model. Without a recipe it is measured as converted.

    plan: a preset's name; `{preset: NAME, field: value}`; an inline plan, whose attention is the table's window
    unless it says otherwise; or `{same_bytes: ROW}`, a window alone whose state has at least that row's bytes. With
    `place`, a list of layers, the preset is made for so many layers and put there; all others have the table's window.
    start: "base", or an earlier trained row: under its own plan it goes on, under another one what both have in
    common is taken over. repeats: the row that this one is again, with another seed. against: an earlier row that the
    page compares this one with, text by text. needs: why the row cannot be built yet.
    """

    name: str
    note: str = ""
    plan: Any = None
    start: str = BASE
    recipe: str | None = None
    set: dict[str, Any] = {}
    mix: MixSettings | None = None
    repeats: str = ""
    against: str = ""
    needs: str = ""

    @property
    def same_bytes(self) -> str | None:
        """The row whose bytes this one's window is found for."""
        return str(self.plan["same_bytes"]) if isinstance(self.plan, dict) and "same_bytes" in self.plan else None


class Table(Strict):
    """Every row, and what is measured of it. Lengths in tokens; `needles` of each length and wording.

    recall: texts of `context` tokens with facts asked for at their end. speed: tokens read and written in turns with
    full attention; either is left out at 0. page: the name of the files that are written. about: paragraphs above the
    table. alike: rows that are to be trained on the same tokens in the same order; the page says whether they were.
    """

    title: str
    page: Literal["results", "comparison", "sharing", "titan"] = "results"
    about: tuple[str, ...] = ()
    base: str
    window: int = Field(128, ge=1)
    sinks: int = Field(4, ge=0)
    context: int = Field(2048, ge=2)
    limit: int | None = Field(None, ge=1)  # perplexity documents of each text
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)  # of needle prompts; none: needles are not measured
    needles: int = Field(20, ge=1, le=MANY)
    wordings: tuple[Literal["heldout", "train"], ...] = Field(("heldout", "train"), min_length=1)
    recall: int = Field(0, ge=0, le=MANY)
    speed: int = Field(0, ge=0)
    ruler: RulerSettings | None = None
    seed: int = Field(0, ge=0, lt=2**63)
    training: Training = Training()
    gap: Gap | None = None
    alike: tuple[tuple[str, ...], ...] = ()
    rows: tuple[Row, ...] = Field(min_length=1)

    def row(self, name: str, where: str) -> Row:
        """The row of that name; UserError, which begins with `where`, when there is none."""
        found = {row.name: row for row in self.rows}
        if name not in found:
            raise UserError(f"{where} names row {name!r}, which the table has not; {suggest(name, found)}")
        return found[name]

    def recipe(self, row: Row) -> Recipe | None:
        """The resolved recipe of a row; None when it is not trained."""
        if row.recipe is None:
            return None
        mix = row.mix or self.training.mix
        shares = {f"data.mix.{kind}": share for kind, share in mix.model_dump().items()}
        values = {**self.training.set, **shares, **row.set}
        try:
            return recipe_with(row.recipe, values)
        except UserError as error:
            raise UserError(f"row {row.name!r}: {error}") from error


def recipe_with(name: str, values: Mapping[str, Any]) -> Recipe:
    """The recipe of a packaged name or a YAML file with other values, by dotted key."""
    return load_recipe(name, [f"{key}={json.dumps(value, default=str)}" for key, value in values.items()])


def table_names() -> list[str]:
    """Names of the packaged tables whose rows are models of one base."""
    return sorted(set(_packaged_names()) - set(OTHER_VERBS))


def load_table(name: str | Path, **changes: Any) -> Table:
    """The table of a packaged name or a YAML file, checked; `changes` replace its top-level values unless None.

    Raises UserError for broken YAML, an unknown key, a name given twice and a row that refers to none before it.
    """
    if str(name) in OTHER_VERBS:
        raise UserError(f"table {name} has a verb of its own: {OTHER_VERBS[str(name)]}")
    return read_table(parse_yaml(table_text(name), f"table {name}"), str(name), **changes)


def read_table(data: dict[str, Any], name: str, **changes: Any) -> Table:
    """The same of plain data; `name` is what errors call it."""
    rows = data.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"table {name}: rows must be a list of rows, each with keys and values")
    checked_rows = [checked(Row, row, f"row {row.get('name', number)!r}") for number, row in enumerate(rows, 1)]
    given = {key: value for key, value in changes.items() if value is not None}
    table = checked(Table, {**data, "rows": checked_rows, **given}, "table")
    _check(table)
    return table


def table_text(name: str | Path) -> str:
    """The text of a packaged table or of a YAML file; UserError when it is neither."""
    path = Path(name)
    if str(name) in _packaged_names():
        return (_packaged() / f"{name}.yaml").read_text(encoding="utf-8")
    if not path.is_file():
        known = suggest(str(name), ["core", "retention", *_packaged_names()])
        raise UserError(f"table {str(name)!r} is neither a file nor a packaged table; {known}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"table {path} is not UTF-8 text") from None


def _packaged() -> Any:
    return resources.files("anchorlm") / "tables"


def _packaged_names() -> list[str]:
    return [item.name[:-5] for item in _packaged().iterdir() if item.name.endswith(".yaml")]


def _check(table: Table) -> None:
    seen: dict[str, Row] = {}
    for row in table.rows:
        if not NAME.fullmatch(row.name) or row.name == BASE:
            raise UserError(f"row name {row.name!r} is not allowed; use small letters, digits, - and ., but not 'base'")
        if row.name in seen:
            raise UserError(f"row {row.name!r} is there twice; each name stands once")
        _check_start(row, seen)
        _check_parts(row, seen)
        table.recipe(row)
        seen[row.name] = row
    for part in ("control", "teacher") if table.gap else ():
        table.row(getattr(table.gap, part), f"gap.{part}")
    if table.gap and table.gap.control == table.gap.teacher:
        raise UserError(f"gap.control and gap.teacher both name row {table.gap.control!r}; name two rows")
    for name in (name for group in table.alike for name in group):
        row = table.row(name, "alike")
        if row.recipe is None and not row.needs:
            raise UserError(f"alike names row {name!r}, which is not trained; name rows with a recipe")


def _check_start(row: Row, seen: dict[str, Row]) -> None:
    if row.start == BASE:
        return
    if row.start not in seen:
        raise UserError(
            f"row {row.name!r} starts from {row.start!r}, no row above it; {suggest(row.start, [BASE, *seen])}"
        )
    if seen[row.start].recipe is None:
        raise UserError(
            f"row {row.name!r} starts from {row.start!r}, which is not trained; name a trained row or 'base'"
        )
    if row.recipe is None:
        raise UserError(f"row {row.name!r} starts from {row.start!r} but has no recipe; it would be the same model")


def _check_parts(row: Row, seen: Mapping[str, Row]) -> None:
    for verb, other in (("repeats", row.repeats), ("is set against", row.against)):
        if other and other not in seen:
            raise UserError(f"row {row.name!r} {verb} {other!r}, no row above it; {suggest(other, seen)}")
    if row.needs and (row.plan is not None or row.recipe):
        raise UserError(f"row {row.name!r} needs what is not built, so it takes no plan and no recipe")
    if not row.needs and row.plan is None and row.start == BASE:
        raise UserError(f"row {row.name!r} has no plan; name a preset, or 'full' for the untouched model")
    if row.recipe is None and (row.set or row.mix):
        raise UserError(f"row {row.name!r} has set or mix but no recipe to change")
