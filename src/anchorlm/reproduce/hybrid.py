"""Table 5 and Figure 10: what a 3:1 hybrid still retrieves, beside its teacher, a window and another hybrid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..eval import SUITES
from . import claims
from .lab import Lab, answered, ask, trained

TEACHER, HYBRID, OTHER, WINDOW = "teacher", "anchor-hybrid", "liger-hybrid", "swa-lora"
LOSS = 0.1  # of the questions, that a hybrid may answer less than its teacher and still be near it
WHY = {
    claims.NOT: "a quarter of the layers with full attention is not enough for this model after so short a training: the "
    "layers in which its retrieval lives are not the ones that keep it",
    claims.UNCLEAR: "so few questions leave an interval that holds both",
    claims.NOT_COMPARABLE: "not measured: the prompts are longer than the model reads",
}


def table5(lab: Lab) -> dict[str, Any]:
    """RULER at each length."""
    found, asked = _measured(lab, "ruler", (TEACHER, HYBRID, WINDOW))
    tasks = list(dict.fromkeys(cell["task"] for cell in found[TEACHER]["cells"]))
    notes = [f"RULER, {', '.join(tasks)}, {_count(found)}; the paper has all 13 tasks.", *asked.material.notes]
    return _page(lab, found, "RULER", ("98.3 against 92.3 at 4K, 82.9 against 85.7 at 16K", "no such control"), notes)


def figure10(lab: Lab) -> dict[str, Any]:
    """Needles at each length; the other hybrid is a Liger with as many full layers."""
    found, _ = _measured(lab, "niah", (TEACHER, HYBRID, OTHER, WINDOW))
    notes = [f"A number hidden in the evaluation text, {_count(found)}. The paper's other hybrid is LoLCATs with 18.75 % "
             "of softmax layers; ours is Liger with every fourth."]  # fmt: skip
    return _page(lab, found, "needles", ("0.95 against 1.00", "no such control"), notes)


def _measured(lab: Lab, suite: str, names: tuple[str, ...]) -> tuple[dict[str, dict[str, Any]], Any]:
    run = lab.prepare("slots", names)
    asked = ask(lab, run, suite)
    trained(lab.fill(run), names, least=len(names))
    return answered(lab, run, suite, asked, names), asked


def _page(
    lab: Lab, found: Mapping[str, dict[str, Any]], what: str, paper: tuple[str, str], notes: list[str]
) -> dict[str, Any]:
    labels = {row.name: row.note for row in lab.scale.table("slots").rows}
    lengths = list(dict.fromkeys(cell["length"] for cell in found[TEACHER]["cells"]))
    points = {name: {length: _at(row, length) for length in lengths} for name, row in found.items()}
    gaps = {name: _less(found[HYBRID], row, lab.scale.seed, what) for name, row in found.items() if name != HYBRID}
    lines = [
        [labels[name], *(claims.percent(one) for one in points[name].values()), claims.percent(found[name])]
        for name in found
    ]
    near = claims.above(gaps[TEACHER], -LOSS)
    rest = [(OTHER, "the other hybrid", "0.95 against 0.33"), (WINDOW, "a window alone", paper[1])]
    return {
        "tables": [{"title": "", "heads": ["model", *(f"{n:,} tokens" for n in lengths), "all"], "rows": lines, "texts": 1}],
        "claims": [
            claims.claim(f"the 3:1 hybrid loses at most {LOSS:.0%} of its teacher's {what}", paper[0],
                         f"{claims.percent(gaps[TEACHER])} of difference", near, WHY),
            *(
                claims.claim(f"it is above {text}", printed, f"{claims.percent(gaps[name])} of difference",
                             claims.above(gaps[name]), WHY)
                for name, text, printed in rest if name in gaps
            ),
        ],
        "figures": [{
            "kind": "lines", "caption": f"Share of {what} by length", "x": "tokens of the prompt", "y": "answered, %",
            "series": {labels[name]: [[length, 100 * one["value"]] for length, one in at.items() if one]
                       for name, at in points.items()},
        }],
        "notes": [*notes, "95 % by bootstrap over questions, differences paired by question."],
    }  # fmt: skip


def _less(first: dict[str, Any], other: dict[str, Any], seed: int, what: str) -> dict[str, Any] | None:
    """The first row's share less the other's, paired by question; None where one of them was not measured."""
    if first["value"] is None or other["value"] is None:
        return None
    suite = "niah" if what == "needles" else "ruler"
    return SUITES[suite].compare(first, other, seed)["first_minus_this"]


def _at(row: Mapping[str, Any], length: int) -> dict[str, Any] | None:
    """Mean over the cells of one length."""
    held = [cell for cell in row["cells"] if cell["length"] == length and cell["n"]]
    values = [cell.get("value", cell.get("exact")) for cell in held]
    return {"value": sum(values) / len(values), "interval": None} if values else None


def _count(found: Mapping[str, dict[str, Any]]) -> str:
    row = found[TEACHER]
    return f"{sum(cell['n'] for cell in row['cells'])} {row['unit']} for each model"
