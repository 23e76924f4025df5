"""About how much work items are, counted in passes: tokens that the untouched model reads and scores.

The constants are ratios of processor seconds, measured with SmolLM2-135M on one core; they move less than speeds do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..analyze.explain.job import Target
from ..eval import EvalOptions
from ..eval.ar import ArOptions
from ..eval.ruler import RulerOptions, chosen_tasks
from ..plan import ModelShape, Plan
from ..results.plans import row_plans
from ..settings import Recipe
from . import table1
from .items import ITEMS
from .lab import analysis_options, eval_options
from .scale import Scale

SLOT = 0.035  # of a pass, for every slot that is written
TRAINED = 4.5  # passes of a token that is trained on: teacher, student, and twice the student on the way back
WRITTEN = 50  # passes of a token that is written: all weights are read for one
ABOVE = 0.5  # of a text's passes when the layers below the one that is changed are not run again, on average
ANSWER = 16  # tokens written for a question whose answers have no size of their own
Work = Iterator[tuple[tuple[str, ...], float]]


@dataclass(frozen=True)
class Site:
    """An item's rows at a scale, with their plans."""

    scale: Scale
    shape: ModelShape
    plans: Mapping[str, Plan]
    item: str


def training(recipe: Recipe, plan: Plan) -> float:
    """Passes to train a row, and to evaluate it on the way where the recipe says so."""
    steps, data = recipe.stage1.steps + recipe.stage2.steps, recipe.data
    watched = (steps // recipe.eval_every + 1) * recipe.eval_batches * 2 if recipe.eval_every else 0
    return cost(plan) * data.length * data.batch * (TRAINED * steps * data.accumulate + watched)


def cost(plan: Plan) -> float:
    """Passes of one token under this plan."""
    return 1 + SLOT * len(plan.slots)


def measuring(name: str, scale: Scale, shape: ModelShape) -> Work:
    """(what is measured, passes) of an item, its trainings aside; items that share a measurement name it alike."""
    item = ITEMS[name]
    every = row_plans(scale.table(item.table), shape)
    site = Site(scale, shape, {row: every[row] for row in item.rows}, name)
    piece = scale.context * (scale.limit or 1)
    yield from ((("loss", item.table, row), piece * cost(plan)) for row, plan in site.plans.items())
    if name == "table1":
        for group, layers in table1.off_groups(scale, shape).items():
            yield ("off", group), piece * cost(table1.without(site.plans[table1.ROW], layers))
    for what in item.sizes:
        yield from MEASURES[what](site, what)


def _texts(site: Site, what: str) -> Work:
    """Read-outs of the evaluation text; of one item also those of the training texts."""
    options = analysis_options(site.scale, what)
    for row, plan in site.plans.items():
        for text in ("evaluation", "training")[: 1 + (site.item == "figure4")]:
            yield (what, row, text), options.context * options.documents * cost(plan)


def _branches(site: Site, what: str) -> Work:
    options = analysis_options(site.scale, what)
    for row, plan in site.plans.items():
        layers = len(Target(row, plan, site.shape).layers(options))
        runs = 2 * layers * (1 + options.control) * (options.documents + options.recall)
        yield (what, row), ABOVE * runs * options.context * cost(plan)


def _needles(site: Site, what: str) -> Work:
    options = eval_options(site.scale, what)
    every = options.needles * len(options.depths)
    return _asked(site, what, options, min(every, options.limit or every), ANSWER)


def _ruler(site: Site, what: str) -> Work:
    options = eval_options(site.scale, what)
    own = options.own_of(what, RulerOptions)
    questions = len(chosen_tasks(own)[0]) * min(own.samples, options.limit or own.samples)
    return _asked(site, what, options, questions, own.answer_tokens or ANSWER)


def _recall(site: Site, what: str) -> Work:
    options = eval_options(site.scale, what)
    return _asked(site, what, options, options.own_of(what, ArOptions).samples, 0)


def _asked(site: Site, what: str, options: EvalOptions, questions: int, written: int) -> Work:
    """So many questions of each length, each with an answer."""
    for row, plan in site.plans.items():
        for length in options.prompt_lengths:
            yield (what, row, str(length)), questions * (length + WRITTEN * written) * cost(plan)


def _times(site: Site, what: str) -> Work:
    sizes, table = site.scale.measures.timing, site.scale.table("timed")
    for row, plan in row_plans(table, site.shape).items():
        for length in sizes.lengths:
            once = sizes.rows * length + WRITTEN * sizes.new_tokens
            yield (what, row, str(length)), sizes.rounds * once * cost(plan)


def _elsewhere(site: Site, what: str) -> Work:
    """Models that are trained from scratch are timed themselves."""
    return iter(())


MEASURES: Mapping[str, Callable[[Site, str], Work]] = {
    "similarity": _texts,
    "readmaps": _texts,
    "knockout": _branches,
    "niah": _needles,
    "ruler": _ruler,
    "ar": _recall,
    "timing": _times,
    "mad": _elsewhere,
}


def shares(names: Sequence[str], scale: Scale, shape: ModelShape) -> dict[str, float]:
    """Passes to measure each item, what several of them share counted at the first."""
    seen: set[tuple[str, ...]] = set()
    found = {}
    for name in names:
        new = {key: passes for key, passes in measuring(name, scale, shape) if key not in seen}
        seen |= set(new)
        found[name] = sum(new.values())
    return found
