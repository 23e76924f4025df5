"""Slots left out by group (Anchor, arXiv 2611.04327, Table 1), and other windows, chunks and state sizes untrained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from anchorlm.convert import views
from anchorlm.core import UserError
from anchorlm.describe import bytes_at, state_bytes
from anchorlm.eval import ppl
from anchorlm.plan import Plan
from anchorlm.presets import boundary_groups
from anchorlm.reading import beyond

from ..bench import Sums
from ..tally import by_group
from .job import Job, Options, Target
from .sizes import most_kept, resized, slots_as

AXES = {"windows": "window", "chunks": "slot that is written chunk by chunk", "kept": "slot of exact tokens"}
GROUPS = ("all", "cross_window")

Row = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One row: the same weights under `plan`, the slots with the sizes it says; note: why it cannot be measured."""

    name: str
    plan: Plan
    teacher: bool = False
    sizes: tuple[int | None, int | None, int | None] | None = None
    note: str | None = None


def check(target: Target, options: Options) -> None:
    """Raise UserError for a model without slots, and for too short a context."""
    target.check_slots("ablation")
    target.check_context(options)


def lacks(target: Target, options: Options) -> dict[str, str]:
    """Axes of the grid along which the model has no size, and what it has none of."""
    found = zip(AXES.items(), axes(target.plan, options), strict=True)
    return {axis: what for (axis, what), sizes in found if sizes == [None]}


def ablation(job: Job) -> Row:
    """Perplexity over all and cross-window targets of each variant, and its change against the model as it is."""
    pieces = job.pieces()
    variants = [*groups_off(job.target.plan, job.target.shape.layers), *grid(job.target, job.options)]
    whole = _measure(job, variants[0], pieces)
    rows = []
    for done, variant in enumerate(variants, 1):
        sums = whole if variant is variants[0] else [] if variant.note else _measure(job, variant, pieces)
        rows.append(_row(job, variant, sums, whole))
        job.tell("ablation", done, len(variants))
    return job.head("ablation", len(pieces)) | {
        "window": job.target.window(job.options),
        "rows": [row for row in rows if row["sizes"] is None],
        "grid": [row for row in rows if row["sizes"] is not None],
    }


def groups_off(plan: Plan, depth: int) -> list[Variant]:
    """The model as it is, each slot left out, all of the boundary layers' slots, all others, all; and the teacher."""
    outer = {layer for group in boundary_groups(depth) for layer in group}
    anchors = [name for name, slot in plan.slots.items() if set(slot.read) <= outer]
    interior = [name for name in plan.slots if name not in anchors]
    named = {f"slot {name} off": [name] for name in plan.slots} if len(plan.slots) > 1 else {}
    if anchors and interior:
        both = {"anchor slots off": anchors, "interior slots off": interior}
        named |= {name: gone for name, gone in both.items() if len(gone) > 1}
    off = {name: gone for name, gone in named.items() if len(gone) < len(plan.slots)}
    found = [Variant("as it is", plan)]
    found += [Variant(name, plan.select_slots([s for s in plan.slots if s not in gone])) for name, gone in off.items()]
    return [*found, Variant("all slots off", plan.without_slots()), Variant("teacher", plan.teacher(), teacher=True)]


def grid(target: Target, options: Options) -> Iterator[Variant]:
    """Windows x chunks x kept tokens; what the plan's own rules forbid is named and not measured."""
    for window, chunk, kept in product(*axes(target.plan, options)):
        plan = resized(target.plan, window, chunk, kept)
        named = {"window": window, "chunk": chunk, "kept": kept}
        name = ", ".join(f"{axis} {size}" for axis, size in named.items() if size)
        try:
            plan.check(target.shape)
            yield Variant(name, plan, sizes=(window, chunk, kept))
        except UserError as error:
            yield Variant(name, plan, sizes=(window, chunk, kept), note=str(error))


def axes(plan: Plan, options: Options) -> tuple[Sequence[int | None], ...]:
    """Sizes along each axis: those asked for, else half, own and double (chunks: half and own); [None] where the plan
    has no such size."""
    slots = plan.slots.values()
    chunk = max((slot.chunk for slot in slots), default=None)
    kept = most_kept(plan)
    near: dict[str, tuple[int | None, tuple[float, ...]]] = {
        "windows": (plan.common_window, (0.5, 1, 2)),
        "chunks": (chunk, (0.5, 1)),
        "kept": (kept, (0.5, 1, 2)),
    }
    return tuple(
        [None] if own is None else getattr(options, name) or [max(1, int(own * factor)) for factor in factors]
        for name, (own, factors) in near.items()
    )


def _measure(job: Job, variant: Variant, pieces: Sequence[np.ndarray]) -> list[Sums]:
    """Nats and targets of every document; a text beyond the teacher's positions is not measured."""
    window, context = job.target.window(job.options), job.options.context
    view = views.PlanView(job.model, variant.plan, lora=not variant.teacher)
    if beyond(view, context):
        return []
    store = job.text()
    key = job.key("ablation", variant=variant.plan.to_dict(), teacher=variant.teacher, data=store.content_hash)
    key |= {"context": context, "documents": len(pieces), "window": window}

    def compute() -> list[Sums]:
        with slots_as(job.model, variant.plan) if variant.sizes else nullcontext():
            return ppl.score(view, list(pieces), context, window=window)

    return job.parts.run(key, compute)


def _row(job: Job, variant: Variant, sums: list[Sums], whole: list[Sums]) -> Row:
    """`groups`: perplexity; `change`: nats a token against the model as it is, paired by document."""
    seed = job.options.seed
    sizes = variant.sizes and dict(zip(("window", "chunk", "kept"), variant.sizes, strict=True))
    found = by_group(sums, None, seed) if sums else {}
    changes = by_group(sums, whole, seed) if sums else {}
    limit = None if sums else variant.note or f"beyond the {job.target.shape.max_positions:,} positions of the base"
    return {
        "name": variant.name,
        "sizes": sizes,
        "note": limit,
        "bytes": bytes_at(variant.plan, job.target.shape, job.options.context),
        "slot_bytes": _slot_bytes(job, variant.plan),
        "groups": {name: _perplexity(found[name]) for name in GROUPS if name in found},
        "change": {name: changes[name] for name in GROUPS if name in changes},
    }


def _perplexity(estimate: Row) -> Row:
    ends = estimate["interval"]
    return {
        "ppl": math.exp(estimate["value"]),
        "interval": ends and [math.exp(end) for end in ends],
        "targets": estimate["targets"],
    }


def _slot_bytes(job: Job, plan: Plan) -> int:
    """Fast weights and kept tokens alone, as the paper counts them."""
    parts = state_bytes(plan, job.target.shape)
    return parts["fast weights"] + parts["kept tokens"]
