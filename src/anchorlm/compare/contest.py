"""The rows of a comparison, from methods, tokens and seeds to a table of the results engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core import UserError, suggest
from ..presets import PRESETS
from ..results.table import Table, read_table, recipe_with
from ..settings import MixSettings, checked, recipe_names
from .budget import fit
from .places import NAME, defaults

DEFAULT = ("swa", "lolcats", "liger", "lizard", "titan-llama", "anchor", "anchor-hybrid")
TEACHER, CONTROL, COMMON = "full", "swa", "common"
FIXED = {
    "stage1.steps": "--tokens",
    "stage2.steps": "--tokens",
    "seed": "--seeds",
    "data.mix.recall": "--mix",
    "data.mix.needle": "--mix",
}


@dataclass(frozen=True)
class Contest:
    """What is compared. tokens: of training, for each row; layers: where NAME-measured has memory, none: no such rows.

    sets: recipe keys of every trained row. mix: shares of generated rows in the common recipe.
    """

    base: str
    methods: tuple[str, ...]
    tokens: int
    seeds: tuple[int, ...] = (0,)
    layers: tuple[int, ...] = ()
    sets: Mapping[str, Any] = field(default_factory=dict)
    mix: Mapping[str, float] = field(default_factory=dict)


def check_methods(names: Iterable[str]) -> tuple[str, ...]:
    """The methods, each once; without names those of DEFAULT that are built. UserError, with a near name, for others.

    The teacher and the window are always there.
    """
    allowed = [name for name in PRESETS if name != TEACHER]
    chosen = tuple(dict.fromkeys(names)) or tuple(name for name in DEFAULT if name in allowed)
    for name in chosen:
        if name not in allowed:
            raise UserError(f"method {name!r} is unknown; {suggest(name, allowed)}")
    return chosen


def contest_table(contest: Contest, **changes: Any) -> Table:
    """The table, checked; `changes` replace its top-level values unless None.

    Raises UserError for keys of `sets` that the comparison fixes itself, and for a budget below one step of a row.
    """
    for key in contest.sets:
        if key in FIXED:
            raise UserError(f"--set {key} is not taken: it follows from {FIXED[key]}")
    data = defaults()
    data.pop("measured")
    data["training"]["set"] |= contest.sets
    data["training"]["mix"] = checked(MixSettings, dict(contest.mix), "--mix").model_dump()
    rows = _rows(contest, data["training"]["set"])
    common = [row["name"] for row in rows if row.get("recipe") == COMMON and not row.get("repeats")]
    again = [[f"{name}.seed{seed}" for name in common] for seed in contest.seeds[1:]]
    facts = {
        "title": f"Methods compared on {contest.base}",
        "base": contest.base,
        "page": "comparison",
        "about": _about(contest),
        "seed": contest.seeds[0],
        "gap": {"control": f"{CONTROL}-{COMMON}", "teacher": f"teacher-{COMMON}", "groups": ["cross_window", "all"]},
        "alike": [common, *again],
        "rows": rows,
    }
    return read_table(data | facts, NAME, **changes)


def own_recipe(method: str) -> str | None:
    """The packaged recipe named like the method, or like its family, as `anchor` for `anchor-hybrid`; None without."""
    names = [method, method.partition("-")[0]]
    return next((name for name in names if name in recipe_names()), None)


def _rows(contest: Contest, sets: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"name": "teacher", "plan": TEACHER, "note": "full attention"}]
    rows += _trained(f"teacher-{COMMON}", TEACHER, COMMON, contest, sets, "full attention")
    rows += [{"name": CONTROL, "plan": CONTROL, "note": "window and sinks"}]
    rows += _trained(f"{CONTROL}-{COMMON}", CONTROL, COMMON, contest, sets, "window and sinks")
    for method in contest.methods:
        rows += _of_method(method, contest, sets) if method != CONTROL else []
    return rows


def _of_method(method: str, contest: Contest, sets: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows, own = [], own_recipe(method)
    if own is not None:
        rows += _trained(method, method, own, contest, sets)
    rows += _trained(f"{method}-{COMMON}", method, COMMON, contest, sets)
    if contest.layers:
        plan = {"preset": method, "place": list(contest.layers)}
        rows += _trained(f"{method}-measured", plan, COMMON, contest, sets, "in measured layers")
    return rows


def _trained(
    name: str, plan: Any, recipe: str, contest: Contest, sets: Mapping[str, Any], what: str = ""
) -> list[dict[str, Any]]:
    """A row for each seed; what it is says its steps."""
    loaded = recipe_with(recipe, sets)
    found = fit(loaded, contest.tokens, f"row {name!r}")
    row: dict[str, Any] = {
        "name": name,
        "plan": plan,
        "recipe": recipe,
        "set": {**found.sets, "seed": contest.seeds[0]},
    }
    row["note"] = "; ".join(filter(None, (what, f"recipe `{recipe}`, {found.text()}")))
    if recipe != COMMON:
        row["mix"] = loaded.data.mix.model_dump()
    again = [
        row
        | {"name": f"{name}.seed{seed}", "set": row["set"] | {"seed": seed}, "note": f"seed {seed}", "repeats": name}
        for seed in contest.seeds[1:]
    ]
    return [row, *again]


def _about(contest: Contest) -> list[str]:
    """What the names of the rows mean."""
    mixed = ", ".join(f"{kind} {share:g}" for kind, share in contest.mix.items() if share)
    lines = [
        f"Every trained row has a budget of {contest.tokens:,} tokens, as many whole optimiser steps as it holds.",
        "`NAME`: the method with its own recipe, steps cut in proportion.",
        f"`NAME-{COMMON}`: the same plan with the recipe `{COMMON}`, one stage of LoRA and of all that the method adds"
        + (f", with generated rows ({mixed})." if mixed else "."),
    ]
    if contest.layers:
        places = ", ".join(map(str, contest.layers))
        lines.append(
            f"`NAME-measured`: that recipe, the plan being that of a model of {len(contest.layers)} layers put into "
            f"layers {places}, of which a method that leaves layers at full attention leaves some; all others have "
            "the control's window."
        )
    return [" ".join(lines)]
