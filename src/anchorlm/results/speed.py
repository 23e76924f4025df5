"""A row's speed beside full attention of the same weights, in turns in one process."""

from __future__ import annotations

from typing import Any

from ..bench import measure
from ..convert.views import PlanView
from ..eval.suite import Job

WRITTEN = 16  # tokens, one by one
ROUNDS = 3
ROW, FULL = "row", "full"


def run_speed(name: str, model: Any, job: Job) -> dict[str, Any]:
    """Tokens a second of reading `job.options.context` random tokens and of writing on, and both over full attention.

    Adapters are on in both, so that the ratios are those of the plan alone.
    """
    models = {ROW: model, FULL: PlanView(model, model.plan.teacher())}
    found = measure(models, [job.options.context], WRITTEN, rounds=ROUNDS, seed=job.options.seed)
    job.tell(f"speed {name}", 1, 1)
    (own_read, own_write), (full_read, full_write) = (_speeds(found["rows"], side) for side in (ROW, FULL))
    speeds = {
        "read": own_read,
        "write": own_write,
        "read_ratio": own_read / full_read,
        "write_ratio": own_write / full_write,
    }
    rounds = found["rows"][0]["rounds"]  # fewer than asked for where reading takes long
    return {"metric": "tokens/s", "value": own_read, "interval": None, "n": rounds, "unit": "rounds", "speeds": speeds}


def _speeds(rows: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """Tokens a second, reading and writing."""
    row = next(row for row in rows if row["model"] == name)
    return row["prefill_tokens_per_s"], 1000 / row["decode_ms"]
