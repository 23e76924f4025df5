"""What is known of every row: from its weights, where they are here, else from the record of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import UserError
from ..data import TokenStore
from ..environment import environment
from ..eval.parts import Parts
from .figures import is_figure, is_place
from .measure import Cell, slim
from .records import Figure, Record, difference, identity, key_of, read_record, write_record
from .rows import Built

FACTS = ("processor", "accelerator", "threads", "packages")


@dataclass(frozen=True)
class Known:
    """What the page shows of a row: its figures by cell, and in words what is missing.

    kept: the record is of weights that are not here, so that what is missing cannot be measured.
    """

    record: Record | None
    figures: dict[str, Figure]
    missing: list[str]
    kept: bool = False


@dataclass(frozen=True)
class Archive:
    """Figures kept in `parts`, records by row, and of rows whose record is another row's, why that is so."""

    cells: list[Cell]
    parts: Parts
    records: dict[str, Record]
    others: dict[str, str]
    environment: dict[str, Any]

    def known(self, row: Built) -> Known:
        """Weights that are here come before a record. A row that is not trained has them always, so that a record of
        another dtype stands until something was measured here."""
        name = row.row.name
        if name in self.others:
            return Known(None, {}, [self.others[name]])
        live, old = self.live(row), self.records.get(name)
        kept = old is not None and (live is None or (row.recipe is None and not live.figures))
        record = old if kept else live
        if record is None:
            return Known(None, {}, [row.state])
        figures = record.cells(self.cells)
        return Known(record, figures, [cell.name for cell in self.cells if cell.name not in figures], kept)

    def live(self, row: Built) -> Record | None:
        """The record of the weights that are here, with what an older one says of the same weights; None without."""
        if not row.ready:
            return None
        digest, old = row.digest(), self.records.get(row.row.name)
        figures = {_text(figure.key): figure for figure in (old.figures if old and old.digest == digest else ())}
        figures |= {_text(figure.key): figure for figure in self._measured(digest)}
        return Record(
            identity=identity(row, None), digest=digest, trained_parameters=row.trained_parameters(),
            tokens=self._tokens(row), training_tokens_per_s=row.training_speed(), figures=tuple(figures.values()),
        )  # fmt: skip

    def _measured(self, digest: str) -> list[Figure]:
        """Figures kept in parts; those of earlier versions were kept without their environment."""
        found = [(cell, self.part(cell, digest)) for cell in self.cells]
        return [
            Figure(key=key_of(cell), value=slim(value), environment=value.get("environment", self.environment))
            for cell, value in found
            if value is not None
        ]

    def part(self, cell: Cell, digest: str) -> dict[str, Any] | None:
        """The kept figure of weights with this digest; None when it was never measured, or is damaged."""
        value = self.parts.find(cell.key_of(digest))
        whole = is_figure(value) and is_place(value.get("environment", self.environment))
        return value if whole else None

    def _tokens(self, row: Built) -> int | None:
        """Tokens seen in training, those of the rows it starts from included; None when their record is lost."""
        if not row.ready:
            return self.records[row.row.name].tokens if row.row.name in self.records else None
        before = self._tokens(row.start) if row.start else 0
        return None if before is None else row.tokens() + before

    def write(self, folder: Path, known: Mapping[str, Known]) -> None:
        """A record of each row of which anything was measured."""
        for name, row in known.items():
            if row.record and row.record.figures:
                write_record(folder / f"{name}.json", row.record)


def open_records(
    folders: Sequence[Path], rows: Mapping[str, Built], store: TokenStore | None, layers: int
) -> tuple[dict[str, Record], dict[str, tuple[Path, str]]]:
    """Records of the rows, and why others are not, both by name. Of each row, the first folder that has one counts."""
    own: dict[str, Record] = {}
    others: dict[str, tuple[Path, str]] = {}
    for name, row in rows.items():
        path = next((p for folder in folders if (p := folder / f"{name}.json").is_file()), None)
        if path is not None:
            record = read_record(path)
            found = difference(record.identity, identity(row, store), layers)
            if found:
                others[name] = path, f"its record is of another row: {found}"
            else:
                own[name] = record
    return own, others


def check_records(folder: Path, names: Sequence[str]) -> None:
    """Raise UserError unless the folder holds a record of one of the rows."""
    if not folder.is_dir():
        raise UserError(f"--records {folder} is no folder")
    if not any((folder / f"{name}.json").is_file() for name in names):
        raise UserError(f"--records {folder} holds no record of a row of this table, such as {names[0]}.json")


def surroundings(dtype: str, device: str) -> dict[str, Any]:
    """What a figure is measured with, as far as it can change the figure."""
    facts = environment()
    return {"dtype": dtype, "device": device, **{name: facts[name] for name in FACTS}}


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
