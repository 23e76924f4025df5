"""Analyses as rows of text for a terminal: the figures that are read first; the JSON holds all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..tables import plain, signed

Row = dict[str, Any]
Tables = Iterator[tuple[str, list[Row]]]

SHOWN = 12  # rows of a branch


def knockout(result: Row) -> Tables:
    """For each text and branch, the layers whose loss rises most beyond the window."""
    near, *far = result["bins"]
    for text, found in result["texts"].items():
        for branch in dict.fromkeys(row["branch"] for row in found["rows"]):
            rows = sorted((r for r in found["rows"] if r["branch"] == branch), key=lambda row: -_far(row, far))
            title = f"{text}: {branch} knocked out, rise of loss in nats a token (95 % over {found['n']} texts)"
            yield title, [_knock(row, near, far) for row in rows[:SHOWN]]


def _far(row: Row, far: list[str]) -> float:
    """Mean rise over the targets whose source lies beyond the window."""
    held = [row["change"][name] for name in far if name in row["change"]]
    return sum(e["value"] * e["targets"] for e in held) / max(1, sum(e["targets"] for e in held))


def _knock(row: Row, near: str, far: list[str]) -> Row:
    shown = {name: signed(row["change"].get(name)) for name in (near, *far)}
    noise = row["noise"] and _far({"change": row["noise"]}, far)
    return {
        "layer": row["layer"],
        "slots": ", ".join(row["slots"]) or "-",
        **shown,
        "noise instead": "-" if noise is None else f"{noise:+.3f}",
    }


def similarity(result: Row) -> Tables:
    title = f"read-outs at {result['targets']:,} cross-window targets (95 % over {result['n']} documents)"
    rows = [
        {
            "pairs of readers": kind,
            "pairs": mean["n"],
            "debiased CKA": plain(mean["cka"]),
            "cosine": plain(mean["cosine"]),
        }
        for kind, mean in result["pairs"].items()
    ]
    yield title, [*rows, {"pairs of readers": "all, targets shuffled", "debiased CKA": f"{result['shuffled']:.3f}"}]


def readmaps(result: Row) -> Tables:
    lead, null = result["leading"], result["null"]["share"]["median"]
    title = f"read maps, median over heads; share of the {lead} leading planes of a random turn: {null:.0%}"
    yield title, [_map(row, lead) for row in result["readers"]]


def _map(row: Row, lead: int) -> Row:
    stretch, share, energy = row["stretch"]["median"], row["share"], row["energy"]
    return {
        "layer": row["layer"],
        "slot": row["slot"],
        "stretch": f"{stretch[-1]:.2f} to {stretch[0]:.2f}",
        "largest angle": f"{row['angles']['median'][0]:.3f} rad",
        f"share of {lead} planes": "-" if share is None else f"{share['median']:.0%}",
        "heads above null": f"{row['heads_above_null']} of {row['heads']}",
        "planes above null": row["above_null"],
        "read-outs in plane 1": "-" if energy is None else f"{energy['median']:.1%}",
    }


def ablation(result: Row) -> Tables:
    title = f"perplexity, {result['n']} documents of {result['options']['context']:,} tokens (95 %; change paired)"
    yield title, [_variant(row) for row in result["rows"]]
    if result["grid"]:
        yield "other sizes, nothing trained", [_variant(row) for row in result["grid"]]


def _variant(row: Row) -> Row:
    shown: Row = {"variant": row["name"], "bytes": row["bytes"]}
    if row["note"]:
        return shown | {"all": row["note"]}
    for name in ("all", "cross_window"):
        group = row["groups"].get(name)
        label = name.replace("_", "-")
        shown |= {label: f"{group['ppl']:.2f}" if group else "-", f"{label}, nats": signed(row["change"].get(name))}
    return shown


def cost(result: Row) -> Tables:
    context = result["options"]["context"]
    whole = [("this plan", result["bytes"]), ("full attention", result["teacher_bytes"])]
    yield f"state of one sequence after {context:,} tokens", [{"model": name, "bytes": size} for name, size in whole]
    yield "states when only some layers are hybrid", [_ratio(row) for row in result["ratios"]]
    yield (
        f"what a reader sees of the past, mean over {context:,} places",
        [_coverage(row) for row in result["coverage"]],
    )


def _ratio(row: Row) -> Row:
    return {
        "hybrid to full layers": f"{row['ratio']} : 1",
        "hybrid layers": row["hybrid"],
        "own states": row["states"]["private"],
        "shared states": row["states"]["shared"],
        "bytes, own": row["state_bytes"]["private"],
        "bytes, shared": row["state_bytes"]["shared"],
    }


def _coverage(row: Row) -> Row:
    shares = {name: f"{value:.1%}" for name, value in row["mean"].items()}
    return {"slots": ", ".join(row["slots"]), "attention": row["reach"], "chunk": row["chunk"], **shares}


def choosers(result: Row) -> Tables:
    where = ", ".join(map(str, result["layers"]))
    title = f"tokens kept in layers {where}, nats a token, {result['n']} documents (95 %; change against the window)"
    yield title, [_chooser(row) for row in result["rows"]]


def _chooser(row: Row) -> Row:
    shown: Row = {"chosen by": row["chooser"], "kept": row["kept"] or "-"}
    for name, label in (("all", "all"), ("beyond", "cross-window")):
        group = row["groups"].get(name)
        shown |= {label: f"{group['value']:.3f}" if group else "-", f"{label}, change": signed(row["change"].get(name))}
    return shown | {"of full attention's gain": "-" if row["closed"] is None else f"{row['closed']:.0%}"}


TABLES: dict[str, Callable[[Row], Tables]] = {
    "knockout": knockout,
    "similarity": similarity,
    "readmaps": readmaps,
    "ablation": ablation,
    "choosers": choosers,
    "cost": cost,
}
