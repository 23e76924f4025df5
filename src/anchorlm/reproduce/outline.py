"""What items would train, and about how long, before anything is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..convert import files
from ..convert.bases import load_base_config
from ..convert.summary import summary
from ..core import pick_dtype
from ..plan import ModelShape
from ..presets import build
from ..results import Job
from .items import ITEMS, chosen
from .scale import Scale

PASSES = 6  # operations a weight for each trained token: the student forward and backward, the teacher forward
GAUGED = 0.5  # seconds of matrix products that tell how fast the machine is now


def outline(names: str | Sequence[str], scale: Scale, job: Job) -> dict[str, Any]:
    """Rows that the items train, each once, with steps, tokens and whether it is trained in job.out already.

    seconds: what training the others takes at the machine's present speed, roughly; measuring comes on top. mad: small
    models trained from scratch. Raises UserError for an unknown item or base.
    """
    wanted = chosen([names] if isinstance(names, str) else names)
    rows = list(_rows(wanted, scale, job))
    tokens = sum(row["tokens"] for row in rows if not row["trained"])
    mad = scale.measures.mad.run() if "table4" in wanted else None
    return {
        "items": wanted,
        "rows": rows,
        "tokens": tokens,
        "seconds": _seconds(tokens, scale, job) if tokens else 0.0,
        "mad": mad and {"trainings": len(mad.models) * len(mad.tasks) * mad.seeds, "steps": mad.training.steps},
    }


def _rows(wanted: Sequence[str], scale: Scale, job: Job) -> Iterator[dict[str, Any]]:
    seen: set[tuple[str, str]] = set()
    for name in wanted:
        kind, table = ITEMS[name].table, scale.table(ITEMS[name].table)
        for row in (table.row(row, "") for row in ITEMS[name].rows):
            recipe = table.recipe(row)
            if recipe is None or (kind, row.name) in seen:
                continue
            seen.add((kind, row.name))
            steps, data = recipe.stage1.steps + recipe.stage2.steps, recipe.data
            trained = files.read_config(job.out / kind / "rows" / row.name) is not None
            yield {"first item": name, "row": row.name, "steps": steps,
                   "tokens": steps * data.length * data.batch * data.accumulate, "trained": trained}  # fmt: skip


def _seconds(tokens: int, scale: Scale, job: Job) -> float:
    config = load_base_config(scale.base)
    shape = ModelShape.from_config(config)
    weights = summary(config, build("swa", shape, window=scale.window))["parameters"]["backbone"]
    return PASSES * weights * tokens / _speed(shape, job)


def _speed(shape: ModelShape, job: Job) -> float:
    """Operations a second of products as wide as the model's, in the dtype that it would be trained in."""
    dtype = pick_dtype(job.dtype, job.device)
    x, w = (torch.ones(*size, dtype=dtype, device=job.device) for size in ((512, shape.hidden), (shape.hidden,) * 2))
    begun, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < GAUGED:
        float((x @ w)[0, 0])
        done += 1
    return done * 512 * shape.hidden**2 / spent
