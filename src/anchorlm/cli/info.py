"""`anchorlm info`: what a plan means for a model, without reading a weight."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import options, show
from .convert import plan_tables


def info(
    source: Annotated[str | None, typer.Argument(metavar="[DIR|BASE]", help="a folder of anchorlm, or a BASE")] = None,
    plan: Annotated[
        str | None, typer.Option("--plan", help="a preset or a YAML file; needed for a BASE or --shape")
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", help="a known size instead of a model, such as llama-3.1-8b")
    ] = None,
    set_: options.Sets = [],
    dtype: Annotated[str, typer.Option(help="of keys and values; states are fp32")] = "bfloat16",
    rules: options.Rules = [],
    json: options.Json = False,
) -> None:
    """Show the plan as a table, the parameters, and the exact bytes of every part of the state."""
    options.use_rules(rules)
    found = _summary(source, plan, shape, options.parse_sets(set_), dtype)
    if json:
        return show.emit(found)
    show.line(f"{found['source']}: {found['shape']['family']}, {found['shape']['layers']} layers, {found['plan_name']}")
    plan_tables(found)


def _summary(
    source: str | None, plan: str | None, shape: str | None, overrides: dict[str, Any], dtype: str
) -> dict[str, Any]:
    from ..convert import summary
    from ..core import UserError, pick_dtype
    from ..plan import ModelShape, Plan
    from ..presets import load_plan

    if (source is None) == (shape is None):
        raise UserError("name a folder or a BASE, or --shape, and not both")
    config, stored = (summary.shape_config(shape), {}) if shape is not None else summary.source_config(str(source))
    sizes = ModelShape.from_config(config)
    if stored and plan is None and overrides:
        raise UserError(f"{source} is a hybrid with a plan of its own, which --set cannot change; give --plan as well")
    if stored and plan is None:
        chosen = Plan.from_dict(stored.get("plan") or {}, sizes.layers)
    else:
        chosen = load_plan(plan or "full", sizes, overrides)
    lora = summary.stored_lora(str(source)) if stored else None
    found = summary.summary(config, chosen, lora, pick_dtype(dtype))
    return {
        "source": source or shape,
        "base": stored.get("base"),
        "plan_name": plan or ("stored plan" if stored else "full"),
        **found,
    }
