"""What training a row would refuse after hours, told of every row before the first one is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..convert.summary import empty_model
from ..core import UserError
from ..plan import Plan
from ..train.stages import check_recipe
from .rows import Built


def check_rows(built: Mapping[str, Built], config: Any) -> None:
    """Raise UserError, which names the row, for a recipe that cannot train its plan and a start that gives it nothing.

    config: the backbone's.
    """
    for name, row in built.items():
        try:
            if row.recipe is not None:
                check_recipe(row.recipe, row.plan)
            _check_start(row, config)
        except UserError as error:
            raise UserError(f"row {name!r}: {error}") from error


def _check_start(row: Built, config: Any) -> None:
    start = row.start
    if start is None or start.plan == row.plan or _has_lora(start):
        return
    if not _memory(config, start.plan) & _memory(config, row.plan):
        name = start.row.name
        raise UserError(f"starts from {name!r}, which has neither LoRA nor a slot in common with it; start from 'base'")


def _has_lora(row: Built) -> bool:
    """Whether the trained row has adapters: of its own second stage, or of the row it starts from."""
    own = row.recipe is not None and row.recipe.stage2.steps > 0
    return own or (row.start is not None and _has_lora(row.start))


def _memory(config: Any, plan: Plan) -> set[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a plan's memory, without any weights."""
    return {(name, tuple(p.shape)) for name, p in empty_model(config, plan).memory_parameters().items()}
