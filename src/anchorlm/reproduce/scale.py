"""How large everything is: model, window, texts, steps, as data; and the tables of rows that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from ..core import MANY, UserError, suggest
from ..results.table import Table, Training, read_table
from ..settings import Strict, checked, parse_yaml
from .sizes import Measures

SCALES = ("small", "full")


class Scale(Strict):
    """The values that all tables of rows share, and by table those that differ. Lengths in tokens.

    measured: layers that need memory by `place`, none when not known. draws: random groups of layers in Table 1.
    measures: how much is asked of the rows.
    """

    base: str
    window: int = Field(128, ge=1)
    sinks: int = Field(4, ge=0)
    context: int = Field(1024, ge=2)
    limit: int | None = Field(None, ge=1)  # pieces of the evaluation text
    seed: int = Field(0, ge=0, lt=2**63)
    measured: tuple[int, ...] = ()
    draws: int = Field(3, ge=1, le=MANY)
    training: Training = Training()
    measures: Measures = Measures()
    tables: dict[str, dict[str, Any]] = {}

    def table(self, kind: str) -> Table:
        """The rows of that name in rows.yaml at this scale."""
        shared = self.model_dump(exclude={"measured", "draws", "measures", "tables"}) | {"lengths": (), "title": kind}
        return read_table(_over(shared, self.tables.get(kind, {})) | {"rows": row_tables()[kind]}, kind)


def load_scale(name: str | Path = "small", sets: Mapping[str, Any] | None = None, **changes: Any) -> Scale:
    """The scale of a packaged name or a YAML file. sets: recipe keys for every trained row; None among `changes` is
    left out.

    Raises UserError for an unknown name or key and for a table that does not exist.
    """
    data = parse_yaml(_read(name), f"scale {name}") | {k: v for k, v in changes.items() if v is not None}
    scale = checked(Scale, data, "scale")
    for kind in scale.tables:
        if kind not in row_tables():
            raise UserError(f"scale tables names {kind!r}; {suggest(kind, row_tables())}")
    if sets:
        extra = {"training": {"set": dict(sets)}}
        tables = {kind: _over(scale.tables.get(kind, {}), extra) for kind in row_tables()}
        scale = scale.model_copy(update={"tables": tables})
    for kind in row_tables():
        scale.table(kind)
    scale.measures.check()
    return scale


def _read(name: str | Path) -> str:
    if str(name) in SCALES:
        return packaged(f"{name}.yaml")
    if not Path(name).is_file():
        raise UserError(f"scale {str(name)!r} is neither a file nor a packaged scale; {suggest(str(name), SCALES)}")
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"scale {name} is not UTF-8 text") from None


def packaged(name: str) -> str:
    """A data file of this package."""
    return (resources.files("anchorlm") / "reproduce" / name).read_text(encoding="utf-8")


@cache
def row_tables() -> dict[str, list[dict[str, Any]]]:
    """The rows of every table by its name."""
    return yaml.safe_load(packaged("rows.yaml"))


def _over(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` laid over `base`, group by group."""
    groups = [key for key, value in extra.items() if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)]
    return {**base, **extra, **{key: _over(base[key], extra[key]) for key in groups}}


def fixed_rows(key: str) -> list[str]:
    """The rows that give a recipe key a value of their own, whatever the scale says."""
    return [row["name"] for rows in row_tables().values() for row in rows if key in row.get("set", {})]
