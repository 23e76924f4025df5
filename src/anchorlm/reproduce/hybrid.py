"""Table 5 and Figure 10: what a 3:1 hybrid still retrieves, beside its teacher, a window and another hybrid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..eval import SUITES
from . import claims
from .lab import Lab, answered, ask, trained

TEACHER, HYBRID, OTHER, WINDOW = "teacher", "anchor-hybrid", "liger-hybrid", "swa-lora"
ASKED, SEARCHED = (TEACHER, HYBRID, WINDOW), (TEACHER, HYBRID, OTHER, WINDOW)  # by Table 5, by Figure 10
LOSS = 0.1  # of the questions, that a hybrid may answer less than its teacher and still be near it
WHAT = {"ruler": "RULER", "niah": "needles"}
OTHERS = {OTHER: "the other hybrid", WINDOW: "a window alone"}
WHY = {
    claims.NOT: "a quarter of the layers with full attention is not enough for this model after so short a training: "
    "those in which its retrieval lives are not the ones that keep it",
    claims.UNCLEAR: "so few questions leave an interval that holds both",
    claims.NOT_COMPARABLE: "the teacher itself answers hardly any of them, or cannot read that far",
}


def table5(lab: Lab) -> dict[str, Any]:
    """RULER at each length."""
    found, asked = _measured(lab, "ruler", ASKED)
    tasks = ", ".join(dict.fromkeys(cell["task"] for cell in found[TEACHER]["cells"]))
    notes = [f"RULER, {tasks}, {_count(found)}; the paper has all 13 tasks.", *asked.material.notes]
    paper = {TEACHER: "98.3 against 92.3 at 4K, 82.9 against 85.7 at 16K", WINDOW: "no such control"}
    return _page(lab, "ruler", found, paper, notes)


def figure10(lab: Lab) -> dict[str, Any]:
    """Needles at each length; the other hybrid is a Liger with as many full layers."""
    found, _ = _measured(lab, "niah", SEARCHED)
    notes = [
        f"A number hidden in the evaluation text, {_count(found)}. The paper's other hybrid is LoLCATs with 18.75 % of "
        "softmax layers; ours is Liger with every fourth."
    ]
    paper = {TEACHER: "0.95 against 1.00", OTHER: "0.95 against 0.33", WINDOW: "no such control"}
    return _page(lab, "niah", found, paper, notes)


def _measured(lab: Lab, suite: str, names: tuple[str, ...]) -> tuple[dict[str, dict[str, Any]], Any]:
    run = lab.prepare("slots", names)
    asked = ask(lab, run, suite)
    trained(lab.fill(run), names, least=len(names))
    return answered(lab, run, suite, asked, names), asked


def _page(
    lab: Lab, suite: str, found: Mapping[str, dict[str, Any]], paper: Mapping[str, str], notes: list[str]
) -> dict[str, Any]:
    labels = {row.name: row.note for row in lab.scale.table("slots").rows}
    lengths = list(dict.fromkeys(cell["length"] for cell in found[TEACHER]["cells"]))
    points = {name: {length: _at(row, length) for length in lengths} for name, row in found.items()}
    lines = [[labels[name], *map(claims.percent, points[name].values()), claims.percent(found[name])] for name in found]
    heads = ["model", *(f"{length:,} tokens" for length in lengths), "all"]
    series = {name: [[length, 100 * one["value"]] for length, one in at.items() if one] for name, at in points.items()}
    return {
        "tables": [{"title": "", "heads": heads, "rows": lines, "texts": 1}],
        "claims": [_claim(lab, suite, found, name, printed) for name, printed in paper.items()],
        "figures": [
            {"kind": "lines", "caption": f"{WHAT[suite]} answered, by length", "x": "tokens of the prompt",
             "y": "answered, %", "top": 105, "series": series}
        ],
        "notes": [*notes, "95 % by bootstrap over questions; differences in points, paired by question."],
    }  # fmt: skip


def _claim(lab: Lab, suite: str, found: Mapping[str, dict[str, Any]], other: str, printed: str) -> dict[str, str]:
    """The hybrid beside another row; a teacher that answers hardly anything has nothing to be kept."""
    gap = gap_of(suite, found[HYBRID], found[other], lab.scale.seed)
    if other != TEACHER:
        text = f"{WHAT[suite]}: the 3:1 hybrid is above {OTHERS[other]}"
        return claims.claim(text, printed, claims.points(gap), claims.above(gap), WHY)
    text = f"{WHAT[suite]}: the 3:1 hybrid loses at most {100 * LOSS:.0f} points against its teacher"
    nothing = found[TEACHER]["value"] is None or found[TEACHER]["value"] <= LOSS
    return claims.claim(text, printed, claims.points(gap), claims.above(None if nothing else gap, -LOSS), WHY)


def gap_of(suite: str, first: dict[str, Any], other: dict[str, Any], seed: int) -> dict[str, Any] | None:
    """The first row's share less the other's, paired by question; None where one of them was not measured."""
    if first["value"] is None or other["value"] is None:
        return None
    return SUITES[suite].compare(first, other, seed)["first_minus_this"]


def _at(row: Mapping[str, Any], length: int) -> dict[str, Any] | None:
    """Mean over the cells of one length."""
    held = [cell for cell in row["cells"] if cell["length"] == length and cell["n"]]
    values = [cell.get("value", cell.get("exact")) for cell in held]
    return {"value": sum(values) / len(values), "interval": None} if values else None


def _count(found: Mapping[str, dict[str, Any]]) -> str:
    row = found[TEACHER]
    return f"{sum(cell['n'] for cell in row['cells'])} {row['unit']} for each model"
