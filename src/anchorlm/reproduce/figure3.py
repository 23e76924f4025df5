"""Figure 3: what stage 1 does to perplexity when it minimises the transfer error, cross-entropy, or both."""

from __future__ import annotations

import math
from typing import Any

from ..results.measure import TEST
from ..results.rows import Built
from ..results.run import Run
from ..train.run import eval_views
from ..train.sinks import read_metrics
from ..train.stages import enter_stage
from ..train.step import evaluate
from . import claims
from .lab import Lab, documents, losses, trained, untrained

ARMS = ("mse", "mse-free", "ce", "both")
WHY_RISE = {
    claims.NOT: "the paper starts at a perplexity of thousands; here every gate starts at zero, so that training "
    "begins at the window alone, and it is short",
    claims.UNCLEAR: "gates start at zero and the training is short, so the branch has hardly moved",
}
WHY_FREE = {
    claims.NOT: "likely because a layer that reads what the student's lower layers wrote learns to make up for their "
    "errors; one that is fed the teacher's states never meets them: its own output comes nearer, the whole drifts away",
}
WHY_FALL = {
    claims.NOT: "a window without sinks has lost what its layers park on the first tokens, which this short a training "
    "does not bring back",
}


def build(lab: Lab) -> dict[str, Any]:
    """Train every arm from the same start on the same rows; curves on held-out text, perplexity by piece.

    Where rows are not to be trained, the arms that are trained already stand alone, and a note names the others.
    """
    run = lab.fill(lab.prepare("figure3", ("start", *ARMS)))
    arms = trained(run, ARMS, least=1)
    rows = {name: documents(run, name) for name in ("start", *arms)}
    curves = {name: _curve(run.built[name], run) for name in arms}
    seed = lab.scale.seed
    rises = {name: losses(rows[name], rows["start"], seed)["all"] for name in arms}
    return {
        "tables": [_ends(run, curves, rises), _steps(curves)],
        "claims": _claims(rows, curves, rises, seed),
        "figures": [{"kind": "curves", "caption": CAPTION, "curves": curves}],
        "notes": [*_notes(lab, run), *untrained(run, ARMS)],
    }


CAPTION = "Held-out transfer error and perplexity during stage 1"


def _curve(row: Built, run: Run) -> list[dict[str, float]]:
    """Step, transfer error and perplexity on the evaluation rows, from before the first step to the end of stage 1."""
    records = [record for record in read_metrics(row.folder / "metrics.jsonl") if "mse" in record.get("eval", ())]
    points = [(0, _start(row, run)), *((record["step"], record["eval"]) for record in records)]
    return [{"step": step, "mse": found["mse"], "perplexity": math.exp(found["ce"])} for step, found in points]


def _start(row: Built, run: Run) -> dict[str, float]:
    """The losses of the model that every arm starts from, measured as this arm measures them."""
    assert row.recipe is not None
    recipe, store = row.recipe, run.stores[TEST]
    key = {
        "figure3": recipe.stage1.mse_inputs,
        "plan": row.plan.to_dict(),
        "base": row.place.fingerprint,
        "dtype": row.place.dtype,
        "rows": [recipe.data.model_dump(mode="json"), recipe.eval_batches, recipe.seed],
        "text": [store.content_hash, store.tokenizer_hash],
    }

    def compute() -> dict[str, float]:
        model, _ = row.open_start()
        views = eval_views(store, recipe, next(model.parameters()).device)
        return evaluate(model, views, enter_stage(model, "stage1", recipe))

    return run.archive.parts.run(key, compute)


def _ends(run: Run, curves: dict[str, Any], rises: dict[str, Any]) -> dict[str, Any]:
    heads = ["losses", "transfer error from", "to", "perplexity from", "to", "rise over the start"]
    lines = [
        [
            f"{name}: {run.table.row(name, '').note}",
            *(claims.figure(curve[at][what]) for what in ("mse", "perplexity") for at in (0, -1)),
            claims.nats(rises[name]),
        ]
        for name, curve in curves.items()
    ]
    return {"title": "", "heads": heads, "rows": lines, "texts": 1}


def _steps(curves: dict[str, Any]) -> dict[str, Any]:
    """Both figures at every evaluation, so that the page says what the plot shows."""
    steps = [point["step"] for point in next(iter(curves.values()))]
    heads = ["losses", "held-out", *(f"step {step}" for step in steps)]
    lines = [
        [name, what, *(claims.figure(point[key]) for point in curve)]
        for name, curve in curves.items()
        for what, key in (("transfer error", "mse"), ("perplexity", "perplexity"))
    ]
    return {"title": "The curves", "heads": heads, "rows": lines, "texts": 2}


def _claims(rows: dict, curves: dict, rises: dict, seed: int) -> list[dict[str, str]]:
    """Those whose arms are there."""
    found = _alone(curves, rises) if "mse" in rows else []
    if "mse-free" in rows:
        ours = f"{_times(curves['mse-free'])}; {_way(curves['mse-free'])}; {claims.nats(rises['mse-free'])}"
        text, paper = "and rises too when the student runs freely", "it does not say which of the two it uses"
        found.append(claims.claim(text, paper, ours, claims.above(rises["mse-free"]), WHY_FREE))
    if "both" in rows:
        ours = f"{_times(curves['both'])}; {_way(curves['both'])}; {claims.nats(rises['both'])}"
        both = claims.together(_falls(curves["both"]), claims.below(rises["both"]))
        found.append(claims.claim("with cross-entropy both fall", "perplexity 5.3K to 34", ours, both, WHY_FALL))
    if {"mse", "both"} <= rows.keys():
        gap = losses(rows["mse"], rows["both"], seed)["all"]
        text = "MSE alone ends worse than MSE and CE"
        found.append(claims.claim(text, "236K against 34", claims.nats(gap), claims.above(gap)))
    return found


def _alone(curves: dict, rises: dict) -> list[dict[str, str]]:
    times, way = _times(curves["mse"]), f"{_way(curves['mse'])}; {claims.nats(rises['mse'])}"
    text = "by MSE alone, each layer fed the teacher's states, the error falls"
    return [
        claims.claim(text, "more than 25 times", times, _falls(curves["mse"])),
        claims.claim("while perplexity rises", "5.3K to 236K", way, claims.above(rises["mse"]), WHY_RISE),
    ]


def _falls(curve: list[dict[str, float]]) -> str:
    """Held-out error has no interval: its rows are few and always the same."""
    return claims.AGREES if curve[-1]["mse"] < curve[0]["mse"] else claims.NOT


def _times(curve: list[dict[str, float]]) -> str:
    first, last = curve[0]["mse"], curve[-1]["mse"]
    times = f"{first / last:.2f} times smaller" if last <= first else f"{last / first:.2f} times larger"
    return f"transfer error {claims.figure(first)} to {claims.figure(last)} ({times})"


def _way(curve: list[dict[str, float]]) -> str:
    return f"perplexity {claims.figure(curve[0]['perplexity'])} to {claims.figure(curve[-1]['perplexity'])}"


def _notes(lab: Lab, run: Run) -> list[str]:
    table, recipe = run.table, run.built["both"].recipe
    assert recipe is not None
    return [
        f"Anchor-F, window {table.window} with {table.sinks} sinks, stage 1 alone: {recipe.stage1.steps} steps of "
        f"{recipe.data.batch * recipe.data.accumulate} x {recipe.data.length:,} tokens, learning rate "
        f"{recipe.stage1.lr:g} (memory {recipe.stage1.lr * recipe.stage1.memory_lr_multiplier:g}), same rows and seed.",
        f"Curves: {recipe.eval_batches} rows of {recipe.data.length:,} tokens of the evaluation text. Rise: paired "
        f"over {lab.scale.limit or 'all'} pieces of {table.context:,} tokens, 95 % by bootstrap over pieces.",
        "The transfer error is normalised: squared distance from the teacher's attention output over its squared norm, "
        "mean over layers. Fed: each layer sees the teacher's hidden states, as LoLCATs does (arXiv 2410.10254); free: "
        "it sees the student's. The paper does not say which it uses.",
    ]
