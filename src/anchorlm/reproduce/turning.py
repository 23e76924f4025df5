"""Figures 8 and 11: in how few planes the learned read maps turn, and what read-outs do on their way through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..results.measure import TEST
from . import claims
from .lab import Lab, analysed, check_text, trained

ROW = "anchor"
FEW = 5  # planes above the null that the paper still has at most
HALF = 0.5
WHY = {
    claims.NOT: "a map starts as the identity and has had few steps; the paper's have had thousands",
    claims.UNCLEAR: "some readers' maps turn in few planes, others do not yet",
}


def figure8(lab: Lab) -> dict[str, Any]:
    """Angles by rank and the share of the leading planes, against random turns of the same size."""
    found = _measured(lab)
    lead, null = found["leading"], found["null"]["share"]["median"]
    heads = ["read map of layer", "stretch", "largest angle", f"share of {lead} planes", "planes above the null",
             "heads above the null"]  # fmt: skip
    lines = [
        [str(row["layer"]), f"{min(row['stretch']['median']):.2f} to {max(row['stretch']['median']):.2f}",
         f"{row['angles']['median'][0]:.3f} rad", _share(row), str(row["above_null"]),
         f"{row['heads_above_null']} of {row['heads']}"]
        for row in found["readers"]
    ]  # fmt: skip
    above = sum(row["heads_above_null"] for row in found["readers"])
    every = sum(row["heads"] for row in found["readers"])
    shares = [row["share"]["median"] for row in found["readers"] if row["share"]]
    planes = [row["above_null"] for row in found["readers"]]
    shown = f"median {min(shares):.0%} to {max(shares):.0%}, null {null:.0%}" if shares else "no map turns"
    drawn = {key: found[key] for key in ("model", "readers", "null", "leading")}
    return {
        "tables": [{"title": "", "heads": heads, "rows": lines, "texts": 1}],
        "claims": [
            claims.claim(f"{lead} planes hold more of the squared rotation than those of a random turn, in every head",
                         "82 % and 92 %, null 26 %, all 128 heads", f"{shown}; {above} of {every} heads above the null",
                         _all(above, every), WHY),
            claims.claim(f"angles are above the null in the leading planes alone, at most {FEW}", "5 and 3",
                         f"the first {min(planes)} to {max(planes)}", _few(planes), WHY),
        ],
        "figures": [
            {"kind": "turns", "caption": "Stretch and angle by rank, median over heads; dashed: a random turn",
             "result": drawn},
            *([{"kind": "leading", "caption": f"Share of {lead} planes", "result": drawn}] if shares else []),
        ],
        "notes": [_note(found, lab)],
    }  # fmt: skip


def figure11(lab: Lab) -> dict[str, Any]:
    """Read-outs of head 0 in each reader's dominant plane: as answered, stretched and turned."""
    found = _measured(lab)
    readers, chance = found["readers"], 2 / found["head_dim"]
    heads = ["read map of layer", "angle of its dominant plane, head 0", "read-outs' length in it, median head",
             "of any plane", f"share of {found['leading']} planes"]  # fmt: skip
    lines = [
        [str(row["layer"]), f"{row['way']['angle']:.3f} rad" if row["way"] else "-",
         f"{row['energy']['median']:.1%}" if row["energy"] else "-", f"{chance:.1%}", _share(row)]
        for row in readers
    ]  # fmt: skip
    shares = [row["share"] for row in readers if row["share"]]
    most = sum(share["low"] > HALF for share in shares)
    drawn = {"model": found["model"], "readers": [{key: row[key] for key in ("layer", "way")} for row in readers]}
    shown = [{"kind": "ways", "caption": "Read-outs of head 0 in each reader's dominant plane", "result": drawn}]
    return {
        "tables": [{"title": "", "heads": heads, "rows": lines, "texts": 1}],
        "claims": [
            claims.claim(f"the rotation takes a few planes: {found['leading']} of {found['head_dim'] // 2} hold most",
                         "drawn", f"{most} of {len(readers)} readers, in three quarters of their heads",
                         _all(most, len(readers)), WHY),
        ],
        "figures": shown if any(row["way"] for row in readers) else [],
        "notes": [_note(found, lab)],
    }  # fmt: skip


def _measured(lab: Lab) -> dict[str, Any]:
    run = lab.prepare("slots", (ROW,))
    check_text(lab, "readmaps", run.stores[TEST])
    trained(lab.fill(run), (ROW,), least=1)
    return analysed(lab, run, ROW, "readmaps")


def _all(found: int, every: int) -> str:
    """Agrees when it is so of all, does not when of none."""
    return claims.AGREES if found == every else claims.UNCLEAR if found else claims.NOT


def _few(planes: list[int]) -> str:
    fits = [0 < count <= FEW for count in planes]
    return _all(sum(fits), len(fits))


def _share(row: Mapping[str, Any]) -> str:
    share = row["share"]
    return f"{share['median']:.0%} ({share['low']:.0%} to {share['high']:.0%})" if share else "-"


def _note(found: Mapping[str, Any], lab: Lab) -> str:
    recipe = next(row for row in lab.scale.table("slots").rows if row.name == ROW)
    trained_for = lab.scale.table("slots").recipe(recipe)
    assert trained_for is not None
    steps = trained_for.stage1.steps + trained_for.stage2.steps
    return (
        f"{found['head_dim']} channels a head; quartiles over heads; null: {found['null']['draws']} random "
        f"skew-symmetric generators of the same size. The maps have had {steps} steps. Read-outs of {found['n']} "
        "pieces of text."
    )
