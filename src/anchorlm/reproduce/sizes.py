"""How much each measurement of an item asks, as data of a scale."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from ..analyze.explain.job import Options
from ..core import MANY, UserError
from ..eval import EvalOptions
from ..mad import Mad, load_mad
from ..settings import Strict

ANALYSES = ("similarity", "knockout", "readmaps")
SUITES = ("ar", "niah", "ruler")


class Timing(Strict):
    """Prompts of `lengths` tokens, so many `rows` at once, `new_tokens` written after each; the best of `rounds`."""

    lengths: tuple[int, ...] = Field((512, 1024), min_length=1)
    rows: int = Field(1, ge=1, le=MANY)
    new_tokens: int = Field(8, ge=1)
    rounds: int = Field(1, ge=1, le=MANY)


class MadSizes(Strict):
    """Models and tasks of the packaged MAD table, all where none is named; set: its settings by dotted key."""

    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    seeds: int | None = Field(None, ge=1, le=MANY)
    set: dict[str, Any] = {}

    def run(self) -> Mad:
        """What is trained. Raises UserError for an unknown name or key."""
        changes = [f"{key}={json.dumps(value)}" for key, value in self.set.items()]
        return load_mad("mad", changes, self.models, self.tasks, self.seeds)


class Measures(Strict):
    """Options of analyses and suites by name, as the verbs analyze and eval take them, and sizes of the rest."""

    similarity: dict[str, Any] = {}
    knockout: dict[str, Any] = {}
    readmaps: dict[str, Any] = {}
    ar: dict[str, Any] = {}
    niah: dict[str, Any] = {}
    ruler: dict[str, Any] = {}
    timing: Timing = Timing()
    mad: MadSizes = MadSizes()

    def check(self) -> None:
        """Raise UserError, which names the measurement, for an option that it does not know or cannot take."""
        for name in (*ANALYSES, *SUITES, "mad"):
            given = getattr(self, name)
            try:
                given.run() if name == "mad" else (Options if name in ANALYSES else EvalOptions).of(**given)
            except UserError as error:
                raise UserError(f"scale measures.{name}: {error}") from error
