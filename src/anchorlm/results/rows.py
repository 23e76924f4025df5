"""One row of a table on disk: whether it is trained, what it was trained as, and the model that it opens."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..convert import adapters, files
from ..convert.attach import convert
from ..convert.bases import load_base
from ..convert.fingerprint import read_header
from ..convert.load import load
from ..core import UserError, atomic_file, occupied, seed_all
from ..data import TokenStore
from ..plan import Plan
from ..settings import Recipe
from ..train.checkpoint import newest_complete, read_position
from ..train.folder import check_identity, identity_of, started_with
from ..train.sinks import read_metrics
from .table import BASE, Row, Table

Found = TypeVar("Found")


@dataclass(frozen=True)
class Place:
    """Where models come from: the base's name and fingerprint, dtype and device, and the folder of trained rows."""

    base: str
    fingerprint: str
    root: Path
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Built:
    """A row with its plan and recipe resolved; `start` is the row it starts from, None for the base."""

    row: Row
    plan: Plan
    recipe: Recipe | None
    start: Built | None
    place: Place

    @property
    def folder(self) -> Path:
        """Of the trained row's run."""
        return self.place.root / self.row.name

    @property
    def ready(self) -> bool:
        """Whether the model can be opened: trained, or measured as converted."""
        return self.recipe is None or files.read_config(self.folder) is not None

    @property
    def state(self) -> str:
        """What keeps the row from being measured, in words; empty when nothing does."""
        if self.ready:
            return ""
        steps = self.recipe.stage1.steps + self.recipe.stage2.steps if self.recipe else 0
        checkpoint, _ = newest_complete(self.folder / files.CHECKPOINTS)
        done = read_position(checkpoint).step if checkpoint else 0
        return f"training stands at step {done} of {steps}" if done else "not trained"

    def check(self, store: TokenStore | None) -> None:
        """Raise UserError when the folder holds a run of another recipe, plan, base, text or start than the row's.

        Without a `store` the text is not compared.
        """
        if self.recipe is None or not occupied(self.folder):
            return
        stored = started_with(self.folder)
        wanted = identity_of(self.recipe, self.plan, store, self.place.fingerprint)
        if store is None:
            stored, wanted = ({k: v for k, v in side.items() if k != "data"} for side in (stored, wanted))
        check_identity(stored, wanted, self.folder)
        known = self._start_record
        if self.start and self.start.ready and known.is_file() and files.read_json(known) != self._start_facts():
            raise UserError(
                f"row {self.row.name!r} was trained from an older {self.start.row.name!r}; remove {self.folder} to "
                "train it again"
            )

    def digest(self) -> str:
        """16 hex digits that change with the row's weights, plan, base or dtype; no model is opened for them."""
        facts = [_said(self.plan.to_dict()), self.place.fingerprint, self.place.dtype]
        found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for path in _weights(self.folder) if self.recipe else ():
            found.update(path.read_bytes())
        return found.hexdigest()[:16]

    def open(self) -> tuple[Any, Any]:
        """(model in eval mode, tokenizer) of the row as it is measured."""
        if self.recipe is not None:
            return load(self.folder, self.place.dtype, self.place.device, base=self.place.base)
        return self._converted()

    def open_start(self) -> tuple[Any, Any]:
        """(model, tokenizer) from which the row is trained; notes which weights those are."""
        seed_all(self.recipe.seed if self.recipe else 0)
        if self.start is None:
            return self._converted()
        with atomic_file(self._start_record) as file:
            json.dump(self._start_facts(), file)
        if self.start.plan == self.plan:
            return self.start.open()
        model, tokenizer = self._converted()
        take_over(model, self.start.folder)
        return model, tokenizer

    def trained_parameters(self) -> int:
        """Memory and LoRA parameters of the trained folder; 0 for a row as converted."""
        paths = _weights(self.folder) if self.recipe else ()
        for path in paths:
            files.check_tensors(path)
        headers = [read_header(path)[0] for path in paths]
        return sum(math.prod(entry["shape"]) for header in headers for entry in header.values())

    def trained_on(self) -> dict[str, str]:
        """Hashes of the text and the tokenizer of this row's own training."""
        return self._ran(lambda run: {name: str(run["data"][name]) for name in ("texts", "tokenizer")})

    def tokens(self) -> int:
        """Tokens seen in this row's own training."""
        return self._ran(lambda run: int(run["training"]["tokens"])) if self.recipe else 0

    def _ran(self, read: Callable[[dict[str, Any]], Found]) -> Found:
        """What `read` finds in the record of the row's training. Raises UserError where that is damaged."""
        path = self.folder / files.RUN
        try:
            return read(files.read_json(path))
        except (LookupError, TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path} is damaged; remove {self.folder} to train the row again") from None

    def training_speed(self) -> float | None:
        """Tokens a second over all steps of this row's own training; None without a record of them."""
        records = read_metrics(self.folder / "metrics.jsonl") if self.recipe else []
        steps = [record for record in records if "tokens_per_s" in record]
        ends = [0, *(step["tokens"] for step in steps)]
        seconds = sum((end - ends[at]) / steps[at]["tokens_per_s"] for at, end in enumerate(ends[1:]))
        return round(ends[-1] / seconds, 1) if seconds else None

    def _converted(self) -> tuple[Any, Any]:
        if self.recipe is None:
            seed_all(0)
        base = load_base(self.place.base, dtype=self.place.dtype, device=self.place.device)
        return convert(base, self.plan).eval(), base.tokenizer

    @property
    def _start_record(self) -> Path:
        return self.folder.with_name(f"{self.row.name}.start.json")

    def _start_facts(self) -> dict[str, str]:
        return {"row": self.start.row.name, "weights": self.start.digest()} if self.start else {}


def _said(values: Any) -> Any:
    """Without what is null: an option that a rule gets later changes no row that leaves it out."""
    if not isinstance(values, dict):
        return values
    return {name: _said(value) for name, value in values.items() if value is not None}


def build_rows(table: Table, plans: dict[str, Plan], place: Place) -> dict[str, Built]:
    """Every row that has a plan, by name, each tied to the row it starts from."""
    built: dict[str, Built] = {}
    for row in table.rows:
        if row.name in plans:
            start = None if row.start == BASE else built[row.start]
            built[row.name] = Built(row, plans[row.name], table.recipe(row), start, place)
    return built


def take_over(model: Any, folder: Path) -> None:
    """Copy what a saved adapter folder and `model` have in common: memory of the same name and shape, and LoRA.

    Raises UserError when that is nothing.
    """
    own, stored = dict(model.memory_parameters()), files.read_tensors(folder / files.MEMORY)
    common = {name: p for name, p in own.items() if name in stored and p.shape == stored[name].shape}
    has_lora = (folder / files.LORA).is_dir()
    if not common and not has_lora:
        raise UserError(f"{folder} and the plan have no slot in common; start from 'base'")
    adapters.copy_tensors(common, {name: stored[name] for name in common}, str(folder / files.MEMORY))
    if has_lora:
        settings = files.read_json(folder / files.LORA / files.LORA_CONFIG)
        weights = files.read_tensors(folder / files.LORA / files.LORA_WEIGHTS)
        adapters.load_lora(model, settings, weights, str(folder / files.LORA))


def _weights(folder: Path) -> list[Path]:
    return [path for path in (folder / files.MEMORY, folder / files.LORA / files.LORA_WEIGHTS) if path.is_file()]
