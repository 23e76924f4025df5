"""What items would train and measure, and about how long, before anything is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..convert import files
from ..convert.bases import load_base_config
from ..convert.summary import summary
from ..core import pick_dtype
from ..mad.run import at_most
from ..plan import ModelShape
from ..presets import build
from ..results import Job
from ..results.plans import row_plans
from . import work
from .items import ITEMS, chosen
from .run import check_out, kept, key_of
from .scale import Scale

PASS = 3.8  # operations a weight that one pass takes as long as: two, and what is not a product of matrices
GAUGED = 0.5  # seconds of matrix products that tell how fast the machine is now


def outline(names: str | Sequence[str], scale: Scale, job: Job) -> dict[str, Any]:
    """What each item trains and measures, and the rows, each once, with whether it is trained in job.out already.

    Seconds are those of this machine at its present speed, roughly: of an item's rows that are not trained, of what it
    measures unless it is kept, and `seconds` of all; what items share counts at the first. mad: small models trained
    from scratch. Raises UserError for an unknown item or base, and a folder that could not be written to.
    """
    wanted = chosen([names] if isinstance(names, str) else names)
    check_out(job.out, wanted)
    config = load_base_config(scale.base)
    shape = ModelShape.from_config(config)
    todo = [name for name in wanted if kept(job.out, name).get("key") != key_of(ITEMS[name], scale, job)]
    rows = list(_rows(todo, scale, job, shape))
    mad = scale.measures.mad.run() if "table4" in wanted else None
    a_pass = _seconds(config, shape, scale, job)
    trained = {name: sum(row.pop("passes") for row in rows if row["first item"] == name) for name in todo}
    measured = {name: a_pass * passes for name, passes in work.shares(todo, scale, shape).items()}
    if mad and "table4" in todo:
        measured["table4"] += at_most(mad, job.out / "mad", job.device)
    items = [{"item": name, "title": ITEMS[name].title, "training": a_pass * trained.get(name, 0.0),
              "measuring": measured.get(name, 0.0), "kept": name not in todo} for name in wanted]  # fmt: skip
    return {
        "items": items,
        "rows": rows,
        "tokens": sum(row["tokens"] for row in rows if not row["trained"]),
        "seconds": sum(item["training"] + item["measuring"] for item in items),
        "mad": mad and {"trainings": len(mad.models) * len(mad.tasks) * mad.seeds, "steps": mad.training.steps},
    }


def _rows(wanted: Sequence[str], scale: Scale, job: Job, shape: ModelShape) -> Iterator[dict[str, Any]]:
    seen: set[tuple[str, str]] = set()
    for name in wanted:
        kind, table = ITEMS[name].table, scale.table(ITEMS[name].table)
        plans = row_plans(table, shape) if ITEMS[name].rows else {}
        for row in (table.row(row, "") for row in ITEMS[name].rows):
            recipe = table.recipe(row)
            if recipe is None or (kind, row.name) in seen:
                continue
            seen.add((kind, row.name))
            steps, data = recipe.stage1.steps + recipe.stage2.steps, recipe.data
            trained = files.read_config(job.out / kind / "rows" / row.name) is not None
            yield {"first item": name, "row": row.name, "steps": steps,
                   "tokens": steps * data.length * data.batch * data.accumulate, "trained": trained,
                   "passes": 0.0 if trained else work.training(recipe, plans[row.name])}  # fmt: skip


def _seconds(config: Any, shape: ModelShape, scale: Scale, job: Job) -> float:
    """Of one pass of one token now."""
    weights = summary(config, build("swa", shape, window=scale.window))["parameters"]["backbone"]
    return PASS * weights / _speed(shape, job)


def _speed(shape: ModelShape, job: Job) -> float:
    """Operations a second of products as wide as the model's, in the dtype that it would be trained in."""
    dtype = pick_dtype(job.dtype, job.device)
    x, w = (torch.ones(*size, dtype=dtype, device=job.device) for size in ((512, shape.hidden), (shape.hidden,) * 2))
    begun, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < GAUGED:
        float((x @ w)[0, 0])
        done += 1
    return done * 512 * shape.hidden**2 / spent
