"""Table 1: one trained Anchor-F, its states switched off by groups of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..convert.views import PlanView, teacher
from ..core import UserError
from ..describe import layers_text
from ..eval import EvalOptions
from ..eval.suite import Job as EvalJob
from ..eval.suites import run_ppl
from ..plan import ModelShape, Plan
from ..presets import boundary_groups
from ..results.measure import TEST
from ..results.run import Run
from . import claims
from .lab import GROUPS, Documents, Lab, losses, mean_documents, trained
from .scale import Scale
from .shapes import fast_bytes

ROW = "anchor-f"
INTACT = "nothing off"
BOUNDARY, OTHERS = "boundary layers off", "all other layers off"
MEASURED, UNMEASURED = "measured layers off", "all but the measured off"
ALL, TEACHER = "every state off", "teacher"
WHY = {
    claims.NOT: "the paper's layers are those of an 8B model after 5 M tokens; in this one retrieval lives in the "
    "middle, and the others are four times as many",
    claims.NOT_COMPARABLE: "with every state off nothing is lost for certain either, so there is nothing to miss",
    claims.UNCLEAR: "the whole memory is worth little after so short a training, and its parts less",
}


def build(lab: Lab) -> dict[str, Any]:
    """Perplexity of the trained row with each group of states off, paired by piece with the row as it is."""
    run = lab.prepare("slots", (ROW,))
    groups = off_groups(lab.scale, run.shape)
    trained(lab.fill(run), (ROW,), least=1)
    rows = _measure(run, groups, lab)
    seed, draws = lab.scale.seed, [name for name in groups if name.startswith("random")]
    rises = {name: losses(found, rows[INTACT], seed) for name, found in rows.items() if name not in (INTACT, TEACHER)}
    bars = [{"name": name, **rise["all"]} for name, rise in rises.items() if rise["all"]]
    return {
        "tables": [_table(run, groups, rows, rises, seed)],
        "claims": _claims(rows, rises, draws, lab.scale),
        "figures": [{"kind": "bars", "caption": "Rise of the loss when states are off", "bars": bars}],
        "notes": _notes(run),
    }


def off_groups(scale: Scale, shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """The layers whose states are off, by the name of the group. Raises UserError for measured layers out of range."""
    every = range(shape.layers)
    boundary = tuple(layer for group in boundary_groups(shape.layers) for layer in group)
    inner = [layer for layer in every if layer not in boundary]
    groups = {INTACT: (), BOUNDARY: boundary, OTHERS: tuple(inner)}
    if scale.measured:
        if not set(scale.measured) <= set(every):
            raise UserError(
                f"scale measured is {list(scale.measured)}; {scale.base} has layers 0 to {shape.layers - 1}"
            )
        groups |= {MEASURED: scale.measured, UNMEASURED: tuple(i for i in every if i not in scale.measured)}
    size = min(len(boundary), len(inner))
    for draw in range(scale.draws):
        chosen = np.random.default_rng([scale.seed, draw]).choice(inner, size, replace=False)
        groups[f"random {draw + 1}: {size} of the others off"] = tuple(sorted(map(int, chosen)))
    return {**groups, ALL: tuple(every)}


def without(plan: Plan, layers: Sequence[int]) -> Plan:
    """The plan with the slots that these layers write left out."""
    return plan.select_slots([name for name, slot in plan.slots.items() if slot.write not in layers])


def _measure(run: Run, groups: Mapping[str, tuple[int, ...]], lab: Lab) -> dict[str, Documents]:
    """Pieces by group, and the teacher's; kept one by one."""
    model, tokenizer = run.built[ROW].open()
    table, store = run.table, run.stores[TEST]
    options = EvalOptions.of(context=table.context, limit=table.limit, window=table.window, seed=table.seed)
    job = EvalJob(store, tokenizer, options, run.archive.parts, lab.progress)
    views = {name: PlanView(model, without(model.plan, layers)) for name, layers in groups.items()}
    found = {name: run_ppl(name, view, job) for name, view in (views | {TEACHER: teacher(model)}).items()}
    return {name: result["documents"] for name, result in found.items() if result["n"]}


def _table(
    run: Run, groups: Mapping[str, tuple[int, ...]], rows: Mapping[str, Documents], rises: Any, seed: int
) -> dict:
    heads = [
        "states off",
        "layers",
        "states left",
        "fast weights",
        "perplexity",
        "95 %",
        "rise",
        "cross-window",
        "its rise",
    ]
    plan, lines = run.built[ROW].plan, []
    for name in (TEACHER, *groups):
        if name not in rows:
            continue
        left = without(plan, groups[name]) if name in groups else plan.teacher()
        size = fast_bytes(left, run.shape)
        found, rise = losses(rows[name], None, seed), rises.get(name, dict.fromkeys(GROUPS))
        lines.append([
            name, layers_text(groups.get(name, ())), str(len(left.slots)), f"{size / 1e6:.2f} MB",
            claims.perplexity(found["all"]), claims.perplexity_span(found["all"]), _rise(rise["all"]),
            claims.perplexity(found["cross_window"]), _rise(rise["cross_window"]),
        ])  # fmt: skip
    return {"title": "", "heads": heads, "rows": lines, "texts": 2}


def _rise(estimate: claims.Estimate | None) -> str:
    return "-" if estimate is None else claims.nats(estimate)


def _claims(rows: Mapping[str, Documents], rises: Any, draws: Sequence[str], scale: Scale) -> list[dict[str, str]]:
    chance = mean_documents([rows[name] for name in draws])
    gaps = {name: losses(rows[name], chance, scale.seed) for name in (BOUNDARY, MEASURED) if name in rows}
    far = losses(rows[BOUNDARY], rows[OTHERS], scale.seed)
    ours = f"{claims.nats(rises[BOUNDARY]['all'])} against {claims.nats(rises[OTHERS]['all'])}"
    found = [
        claims.claim("switching the boundary layers off hurts far more than all others", "487.56 against 10.01",
                     f"{ours}; cross-window difference {claims.nats(far['cross_window'])}",
                     claims.above(losses(rows[BOUNDARY], rows[OTHERS], scale.seed)["all"]), WHY),
        claims.claim("without the others nothing is lost", "10.01 against 10.19 with all",
                     claims.nats(rises[OTHERS]["all"]), claims.no_loss(rises[OTHERS]["all"], rises[ALL]["all"]), WHY),
        claims.claim("boundary layers hurt more than as many others drawn at random", "no such control",
                     claims.nats(gaps[BOUNDARY]["all"]), claims.above(gaps[BOUNDARY]["all"]), WHY),
    ]  # fmt: skip
    if MEASURED in gaps:
        text = "measured layers hurt more than as many drawn at random"
        ours = f"{claims.nats(gaps[MEASURED]['all'])}; cross-window {claims.nats(gaps[MEASURED]['cross_window'])}"
        found.append(claims.claim(text, "no such control", ours, claims.above(gaps[MEASURED]["all"])))
    return found


def _notes(run: Run) -> list[str]:
    recipe = run.built[ROW].recipe
    assert recipe is not None
    return [
        f"One Anchor-F trained for {recipe.stage1.steps} and {recipe.stage2.steps} steps of {recipe.data.length:,} "
        "tokens; nothing is trained again when states are off. A state that is never written is never read here, so "
        "the paper's update off and a branch left out are the same.",
        "Rise: against nothing off, nats a token, paired by piece, 95 % by bootstrap over pieces; its rise is that of "
        "cross-window tokens. Fast weights in float32, without momentum, as the paper counts them.",
        "Needles are left out: at this size a memory of fast weights finds none after so short a training.",
    ]
