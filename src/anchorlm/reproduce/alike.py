"""Figures 1, 4 and 9: how alike the read-outs of layers are, of one memory, on two texts, and of three memories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..analyze.explain.cost import ratios
from ..results.measure import TEST
from ..results.run import Run
from . import claims
from .lab import Lab, analysed, check_text, trained
from .shapes import NOTE, paper_plan, paper_shape

ROW = "anchor-f"
MEMORIES = {"anchor-f": "Anchor-F", "lolcats": "LoLCATs", "liger": "Liger"}
PAPER = {"anchors": "anchor layers", "interior": "interior layers"}
NEAR = 0.2  # a mean cosine below it is small
SHARED, TIMES = (3, 4, 5), (3.0, 6.0)  # hybrid layers to one full one at which the paper draws its saving
WHY = {
    claims.NOT: "the paper's layers are those of an 8B model; here the states have seen some ten thousand tokens, so "
    "that what they answer still comes from the start they share",
    claims.UNCLEAR: "so few documents leave intervals that overlap",
}


def figure1(lab: Lab) -> dict[str, Any]:
    """Anchor against interior pairs of a memory in every layer, and states against the ratio of hybrid layers."""
    run = _run(lab, (ROW,))
    found = analysed(lab, run, ROW, "similarity")
    counted = ratios(paper_plan("anchor"), paper_shape(), lab.scale.context)
    plotted = {"model": "llama-3.1-8b", "ratios": counted}
    return {
        "tables": [_pairs(found), _counts(counted)],
        "claims": [_anchors_more("", "0.92 against 0.49", found), _fewer(counted)],
        "figures": [
            {"kind": "likeness", "caption": "Read-outs of every two layers", "result": _drawn(found)},
            {"kind": "ratio", "caption": "States of the paper's model; labels: how many",
             "result": plotted},
        ],
        "notes": [_note(found), f"The ratios are of {NOTE}"],
    }  # fmt: skip


def figure4(lab: Lab) -> dict[str, Any]:
    """The same pairs on the evaluation text and on the training texts."""
    run = _run(lab, (ROW,))
    texts = {"evaluation text": run.stores[TEST]} | ({"training texts": run.training} if run.training else {})
    found = {name: analysed(lab, run, ROW, "similarity", store) for name, store in texts.items()}
    heads = ["text", "anchor pairs, CKA", "interior pairs, CKA", "all pairs, mean cosine", "targets shuffled, CKA"]
    lines = [
        [name, *(claims.number(_mean(one, kind)) for kind in ("anchors", "interior")),
         claims.number(_mean(one, "all", "cosine")), f"{one['shuffled']:.3f}"]
        for name, one in found.items()
    ]  # fmt: skip
    bars = [
        {"name": f"{name}: {PAPER[kind]}", **_mean(one, kind)}
        for name, one in found.items() for kind in PAPER if _mean(one, kind)
    ]  # fmt: skip
    paper = dict(zip(texts, ("0.92 against 0.49 (WikiText)", "0.97 against 0.82 (PG-19)"), strict=False))
    return {
        "tables": [{"title": "", "heads": heads, "rows": lines, "texts": 1}],
        "claims": [
            *(_anchors_more(f", {name}", paper[name], one) for name, one in found.items()),
            *(_small(f"the cosine is near 0, {name}", one) for name, one in found.items()),
        ],
        "figures": [{"kind": "bars", "caption": "Debiased CKA of pairs of layers", "bars": bars,
                     "label": "debiased CKA (bars: 95 % interval)"}],
        "notes": [_note(next(iter(found.values()))), "Of the training texts the model has seen a few thousand tokens."],
    }  # fmt: skip


def figure9(lab: Lab) -> dict[str, Any]:
    """CKA against cosine for a memory of each of three kinds in every layer, trained alike."""
    run = _run(lab, tuple(MEMORIES))
    found = {name: analysed(lab, run, name, "similarity") for name in MEMORIES}
    heads = ["memory", "pairs", "debiased CKA", "targets shuffled", "mean cosine"]
    lines = [
        [MEMORIES[name], str(one["pairs"]["all"]["n"]), claims.number(_mean(one, "all")), f"{one['shuffled']:.3f}",
         claims.number(_mean(one, "all", "cosine"))]
        for name, one in found.items()
    ]  # fmt: skip
    return {
        "tables": [{"title": "", "heads": heads, "rows": lines, "texts": 1}],
        "claims": [
            *(
                claims.claim(f"layers of {MEMORIES[name]} share information: CKA far above that of shuffled targets",
                             "drawn", claims.number(_mean(one, "all")), claims.above(_mean(one, "all"), 0.1), WHY)
                for name, one in found.items()
            ),
            *(_small(f"in coordinates of their own: {MEMORIES[name]}'s cosine is small", one)
              for name, one in found.items()),
        ],
        "figures": [
            {"kind": "pairs", "caption": f"{MEMORIES[name]}: one point a pair of layers", "result": _drawn(one)}
            for name, one in found.items()
        ],
        "notes": [_note(next(iter(found.values()))), "Far above: by 0.1. Small: less than "
                  f"{NEAR} from 0. Liger has no stage of transfer, so it is trained for fewer steps."],
    }  # fmt: skip


def _run(lab: Lab, names: tuple[str, ...]) -> Run:
    """The rows, trained; texts are checked first."""
    run = lab.prepare("slots", names)
    for store in filter(None, (run.stores[TEST], run.training)):
        check_text(lab, "similarity", store)
    trained(lab.fill(run), names, least=len(names))
    return run


def _mean(found: Mapping[str, Any], kind: str, what: str = "cka") -> Any:
    """The mean over a kind of pairs; None where there is no such pair."""
    pairs = found["pairs"].get(kind)
    return pairs and pairs[what]


def _anchors_more(where: str, paper: str, found: Mapping[str, Any]) -> dict[str, str]:
    anchors, interior = (_mean(found, kind) for kind in PAPER)
    ours = f"{claims.number(anchors)} against {claims.number(interior)}"
    text = f"read-outs of anchor layers are more alike than those of interior ones{where}"
    return claims.claim(text, paper, ours, claims.apart(anchors, interior), WHY)


def _small(text: str, found: Mapping[str, Any]) -> dict[str, str]:
    cosine = _mean(found, "all", "cosine")
    return claims.claim(text, "drawn", claims.number(cosine), claims.within(cosine, NEAR), WHY)


def _fewer(counted: list[dict[str, Any]]) -> dict[str, str]:
    times = {row["ratio"]: row["states"]["private"] / row["states"]["shared"] for row in counted}
    ours = ", ".join(f"{times[ratio]:.1f} times at {ratio}:1" for ratio in SHARED)
    inside = all(TIMES[0] <= times[ratio] <= TIMES[1] for ratio in SHARED)
    text = "one shared state for each run of hybrid layers needs 3 to 6 times fewer"
    return claims.claim(text, "3 to 6 times", ours, claims.AGREES if inside else claims.NOT)


def _pairs(found: Mapping[str, Any]) -> dict[str, Any]:
    lines = [
        [kind, str(pairs["n"]), claims.number(pairs["cka"]), claims.number(pairs["cosine"])]
        for kind, pairs in found["pairs"].items()
    ]
    lines.append(["all, targets shuffled", "-", f"{found['shuffled']:.3f}", "-"])
    return {
        "title": "",
        "heads": ["pairs of layers", "pairs", "debiased CKA", "mean cosine"],
        "rows": lines,
        "texts": 1,
    }


def _counts(counted: list[dict[str, Any]]) -> dict[str, Any]:
    heads = ["hybrid to full layers", "a state a layer", "a state a run", "times fewer"]
    lines = [
        [f"{row['ratio']}:1", *(str(row["states"][kind]) for kind in ("private", "shared")),
         f"{row['states']['private'] / row['states']['shared']:.1f}"]
        for row in counted
    ]  # fmt: skip
    return {"title": "States of the paper's model", "heads": heads, "rows": lines, "texts": 1}


def _drawn(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the figures need of an analysis."""
    return {name: found[name] for name in ("model", "readers", "cka", "cosine", "shuffled")}


def _note(found: Mapping[str, Any]) -> str:
    return (
        f"Read-outs of {found['n']} pieces of {found['options']['context']:,} tokens, at {found['targets']:,} targets "
        "whose word pair stood last beyond the window; CKA in float64; 95 % with one piece left out at a time. Figure "
        "1 speaks of states; what is compared here is what layers are answered, as in Figure 9."
    )
