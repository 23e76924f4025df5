"""Where memory is offered a measured place: layers named on the command line, of a plan, or known of a base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core import UserError
from ..plan import ModelShape, Plan, layer_range
from ..presets import load_plan
from ..results.table import table_text
from ..settings import parse_yaml

NAME = "compare"


def defaults() -> dict[str, Any]:
    """The packaged settings of a comparison."""
    return parse_yaml(table_text(NAME), f"table {NAME}")


def known_layers(base: str) -> tuple[int, ...]:
    """The measured layers of a base that has a name here; none for any other."""
    return tuple(defaults()["measured"].get(base, ()))


def named_layers(text: str, shape: ModelShape) -> tuple[int, ...]:
    """Layers of `7,8,18-20`, or those that a plan file, as of `anchorlm place`, gives more than a window.

    Raises UserError for layers that the model has not, and for a plan that leaves every layer with a window alone.
    """
    if Path(text).suffix not in (".yaml", ".yml"):
        parts = [part.strip() for part in text.split(",")]
        return tuple(sorted({layer for part in parts for layer in layer_range(part, shape.layers, "--layers")}))
    found = memory_layers(load_plan(text, shape))
    if not found:
        raise UserError(f"--layers {text}: the plan gives no layer more than a window")
    return found


def memory_layers(plan: Plan) -> tuple[int, ...]:
    """Layers that read a slot, or of which some head sees the whole text."""
    return tuple(i for i, reach in enumerate(plan.layers) if reach.unlimited or plan.reads(i))
