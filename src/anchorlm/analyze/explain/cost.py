"""What a memory costs and covers, from the plan alone (Anchor, arXiv 2611.04327, Figures 1 right, 5 right and 6)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.describe import bytes_at, fixed_bytes
from anchorlm.plan import ModelShape, Plan, Reach, Slot

from .job import Job, Options, Target, existing

RATIOS = (1, 2, 3, 4, 5, 7)  # hybrid layers for each layer that keeps full attention
PLACES = 9  # of a text, at which the picture shows what is covered

Row = dict[str, Any]


def check(target: Target, options: Options) -> None:
    """Raise UserError for a model without slots, and for results that are not a table's."""
    target.check_slots("cost")
    if options.results is not None:
        trade_off(options.results)


def cost(job: Job) -> Row:
    """State bytes against the ratio of hybrid layers, coverage of each slot's readers, and a table's trade-off."""
    target, options = job.target, job.options
    return job.head("cost") | {
        "bytes": bytes_at(target.plan, target.shape, options.context),
        "fixed_bytes": fixed_bytes(target.plan, target.shape),
        "teacher_bytes": bytes_at(target.plan.teacher(), target.shape, options.context),
        "ratios": ratios(target.plan, target.shape, options.context),
        "coverage": [coverage(target.plan, name, options.context) for name in _distinct(target.plan)],
        "trade_off": None if options.results is None else trade_off(options.results),
    }


def ratios(plan: Plan, shape: ModelShape, context: int) -> list[Row]:
    """One row a ratio of hybrid layers to full ones, with a state of the plan's first kind in every hybrid layer, or
    one for each run of them. Bytes: of all states, and of the whole model after `context` tokens."""
    slot = next(iter(plan.slots.values()))
    reach = plan.layers[slot.write]
    return [_ratio(slot, reach, shape, number, context) for number in RATIOS if number < shape.layers]


def _ratio(slot: Slot, reach: Reach, shape: ModelShape, number: int, context: int) -> Row:
    full = [layer for layer in range(shape.layers) if layer % (number + 1) == number]
    hybrid = [layer for layer in range(shape.layers) if layer not in full]
    layers = tuple(Reach() if layer in full else reach for layer in range(shape.layers))
    blocks = [[i for i in hybrid if i // (number + 1) == b] for b in range(-(-shape.layers // (number + 1)))]
    plans = {
        "private": Plan(layers, {f"l{i}": replace(slot, write=i, read=(i,)) for i in hybrid}),
        "shared": Plan(layers, {f"b{n}": replace(slot, write=b[0], read=tuple(b)) for n, b in enumerate(blocks) if b}),
    }
    alone = fixed_bytes(Plan(layers), shape)
    return {
        "ratio": number,
        "hybrid": len(hybrid),
        "states": {name: len(made.slots) for name, made in plans.items()},
        "state_bytes": {name: fixed_bytes(made, shape) - alone for name, made in plans.items()},
        "bytes": {name: bytes_at(made, shape, context) for name, made in plans.items()},
    }


def _distinct(plan: Plan) -> list[str]:
    """One slot of each way of covering a text."""
    ways = {(plan.layers[slot.read[0]], slot.chunk, slot.lag, _held(slot)): name for name, slot in plan.slots.items()}
    return list(ways.values())


def _held(slot: Slot) -> int | None:
    """Tokens that a slot of exact ones holds; None where the state sums up all."""
    return getattr(slot.rule_options, "tokens", None)


def coverage(plan: Plan, name: str, context: int) -> Row:
    """What a reader of this slot sees of the past at some places of a text, and on average over all places.

    spans: [first, last] of the window and of what the state was written from, with both ends counted; None if nothing.
    """
    slot, reach = plan.slots[name], plan.layers[plan.slots[name].read[0]]
    places = np.unique(np.linspace(0, context - 1, PLACES).round().astype(int)).tolist()
    alike = [n for n, other in plan.slots.items() if _like(plan, other) == _like(plan, slot)]
    return {
        "slots": alike,
        "reach": reach.text(),
        "chunk": slot.chunk,
        "lag": slot.lag,
        "held": _held(slot),
        "places": [{"at": t, **_spans(reach, slot, t)} for t in places],
        "mean": _mean(reach, slot, context),
    }


def _like(plan: Plan, slot: Slot) -> tuple[Any, ...]:
    return plan.layers[slot.read[0]], slot.chunk, slot.lag, _held(slot)


def _spans(reach: Reach, slot: Slot, t: int) -> Row:
    written, first = _edges(reach, slot, t)
    return {
        "window": None if reach.kind == "none" else [first, t],
        "sinks": [0, min(reach.sinks, first) - 1] if min(reach.sinks, first) else None,
        "state": [0, written - 1] if written else None,
    }


def _edges(reach: Reach, slot: Slot, t: int) -> tuple[int, int]:
    """Tokens written when token t reads, and the first token that its window sees."""
    size, first = reach.window or reach.segment or 1, 0
    if reach.kind == "window":
        first = max(0, t + 1 - size)
    elif reach.kind == "terrace":
        first = max(0, t // size - 1) * size
    elif reach.kind != "full":
        first = t - t % size if reach.kind == "segment" else t + 1
    if slot.by_chunk:
        return max(0, t // slot.chunk - slot.behind) * slot.chunk, first
    return t + 1 if slot.lag == "self" else first, first


def _mean(reach: Reach, slot: Slot, context: int) -> Row:
    """Share of the tokens up to and with the current one, mean over places: in the window or a sink alone, in the state
    alone, in both, in neither."""
    total = np.zeros(4)
    for t in range(context):
        written, first = _edges(reach, slot, t)
        near = np.arange(t + 1) >= first
        near[: reach.sinks] = True
        state = np.arange(t + 1) < written
        total += [(near & ~state).mean(), (state & ~near).mean(), (near & state).mean(), (~near & ~state).mean()]
    return dict(zip(("window", "state", "both", "neither"), (total / context).tolist(), strict=True))


def read_results(path: str) -> Row:
    """What `anchorlm results` wrote. Raises UserError for a file that is something else."""
    file = existing(path, "results")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        raise UserError(f"results {path} is not readable JSON") from None
    if not isinstance(found, dict) or found.get("kind") != "results" or "rows" not in found:
        raise UserError(f"results {path} is not a results.json of `anchorlm results TABLE`")
    return found


def trade_off(path: str) -> Row:
    """State bytes of every measured row of a table against perplexity and needles.

    path: what `anchorlm results` wrote. Raises UserError for a file that is something else.
    """
    found = read_results(path)
    try:
        return _points(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"results {path} is damaged, or of another version ({type(error).__name__}: {error})") from None


def _points(found: Row) -> Row:
    length = str(found["table"]["context"])
    text = next(iter(found["texts"]), None)
    rows = [_point(row, length, text) for row in found["rows"] if row["texts"].get(text, {}).get("all")]
    return {"table": found["table"]["title"], "context": int(length), "text": text, "rows": rows}


def _point(row: Row, length: str, text: str | None) -> Row:
    measured = row["texts"][text]
    needles = next(iter(row["needles"].values()), {}).get(length)
    found = needles and needles["hits"] is not None
    return {
        "name": row["name"],
        "bytes": row["state_bytes"][length],
        "ppl": measured["all"],
        "cross_window": measured["cross_window"],
        "needles": {"value": needles["hits"] / needles["n"], "interval": needles["interval"]} if found else None,
    }
