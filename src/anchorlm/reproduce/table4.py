"""Table 4: small models of every plan, trained from scratch on MAD."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..mad import run_mad
from ..mad.page import AVERAGE, COLUMNS
from ..report.mad import percent
from . import claims
from .lab import Lab

TRANSFORMER, HYBRID, EVERY, INTERIOR = "transformer", "hybrid", "anchor-f", "anchor-i"
FUZZY = "fuzzy recall"
CLAIMS = (
    (INTERIOR, TRANSFORMER, AVERAGE, "Anchor-I is above the Transformer on average", "93.5 against 90.9"),
    (EVERY, TRANSFORMER, AVERAGE, "Anchor-F is above the Transformer on average", "91.6 against 90.9"),
    (EVERY, HYBRID, AVERAGE, "Anchor-F is above the 3:1 hybrid on average", "91.6 against 84.1"),
    (INTERIOR, TRANSFORMER, FUZZY, "Anchor-I is above the Transformer in fuzzy recall", "67.9 against 55.7"),
)
WHY = {
    claims.UNCLEAR: "the seeds do not agree on which is higher, or both learn nothing in so few steps",
    claims.NOT: "the models have seen a few thousand rows: what a memory has yet to learn, attention has at once",
}


def table4(lab: Lab) -> dict[str, Any]:
    """Every model on every task, over seeds, in the columns of the paper."""
    progress = partial(lab.progress, "mad") if lab.progress else None
    result = run_mad(lab.scale.measures.mad.run(), lab.job.out / "mad", progress, lab.say, lab.job.device)
    names = [*COLUMNS, AVERAGE]
    rows = {row["model"]: row for row in result["rows"]}
    lines = [[name, *(percent(row["columns"][column]) for column in names)] for name, row in rows.items()]
    lines.append(["chance", *(percent(result["chance"][column]) for column in names)])
    training, model = result["settings"]["training"], result["settings"]["model"]
    return {
        "tables": [{"title": "", "heads": ["model", *names], "rows": lines, "texts": 1}],
        "claims": [
            _higher(rows[first]["columns"][column], rows[second]["columns"][column], text, paper)
            for first, second, column, text, paper in CLAIMS
            if first in rows and second in rows
        ],
        "figures": [{"kind": "mad", "caption": "Share of scored tokens that are right", "result": result}],
        "notes": [
            f"{model['layers']} layers of width {model['hidden']}, at most {training['steps']} steps of "
            f"{training['batch']} rows, {result['settings']['seeds']} seeds; mean and standard deviation over seeds. "
            "A claim agrees when it holds with every seed."
        ],
    }


def _higher(first: dict[str, Any] | None, second: dict[str, Any] | None, text: str, paper: str) -> dict[str, str]:
    """Of two columns, seed by seed."""
    ours = f"{percent(first)} against {percent(second)}"
    if first is None or second is None:
        return claims.claim(text, paper, ours, claims.NOT_COMPARABLE)
    gaps = [a - b for a, b in zip(first["values"], second["values"], strict=True)]
    verdict = claims.AGREES if min(gaps) > 0 else claims.NOT if max(gaps) < 0 else claims.UNCLEAR
    return claims.claim(text, paper, ours, verdict, WHY)
