"""What the page shows of analyses: each result with its captions and figures."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from anchorlm.report import branches, maps, tradeoffs

KINDS = ("knockout", "similarity", "readmaps", "ablation", "choosers", "cost")

Row = dict[str, Any]
Figures = list[tuple[str, Markup]]


def sections(found: dict[str, list[Row]]) -> dict[str, list[Any]]:
    """The template's variables."""
    return {
        "knockouts": [(r, [_knocked(r, name) for name in r["texts"]]) for r in found["knockout"]],
        "similarities": [(r, _drawn(_likeness(r))) for r in found["similarity"]],
        "readmaps": [(r, _drawn(_maps(r))) for r in found["readmaps"]],
        "ablations": [(r, _drawn(_ablation(r))) for r in found["ablation"]],
        "choosers": found["choosers"],
        "costs": [(r, _drawn(_cost(r))) for r in found["cost"]],
    }


def _drawn(figures: dict[str, str | None]) -> Figures:
    return [(caption, Markup(svg)) for caption, svg in figures.items() if svg]


def _knocked(result: Row, name: str) -> tuple[str, Row, Figures]:
    found = result["texts"][name]
    figures: dict[str, str | None] = {
        "Rise of the loss without one branch of one layer": branches.knock_map(result, name, "change")
    }
    if any(row["noise"] for row in found["rows"]):
        figures["The control: noise of the removed branch's norm instead"] = branches.knock_map(result, name, "noise")
    return name, found, _drawn(figures)


def _likeness(result: Row) -> dict[str, str | None]:
    return {
        "Read-outs of every two readers: shared geometry, shared coordinates": branches.likeness(result),
        "CKA against cosine, one point a pair of readers": branches.shared_and_turned(result),
    }


def _maps(result: Row) -> dict[str, str | None]:
    turning = any(row["share"] for row in result["readers"])
    by_rank = "Stretch and rotation by rank, median over heads and quartiles; dashed: a random turn of the same size"
    share = "Share of the squared rotation in the leading planes, median over heads and quartiles"
    return {
        by_rank: maps.turns(result),
        share: maps.leading(result) if turning else None,
        "Read-outs of head 0 in the plane that turns most": maps.ways(result),
    }


def _ablation(result: Row) -> dict[str, str | None]:
    return {
        "Change of the loss with slots left out (95 %, paired by document)": tradeoffs.changes(result),
        "Other windows, chunks and numbers of kept tokens, nothing trained": tradeoffs.sizes(result),
    }


def _cost(result: Row) -> dict[str, str | None]:
    table = result["trade_off"]
    by_ratio = "States when one layer after every so many hybrid ones keeps full attention; labels: number of states"
    return {
        by_ratio: tradeoffs.ratio(result),
        "What a token can be told about, by place": tradeoffs.covered(result),
        "State against cross-window perplexity, every row of the table": table and tradeoffs.scatter(table),
    }
