"""Figures 5 and 7: what follows from the plan and the shape of the paper's model alone, to the byte."""

from __future__ import annotations

from typing import Any

from ..convert.summary import shape_config
from ..describe import describe, state_bytes
from ..plan import ModelShape, Plan
from ..presets import build as preset
from . import claims
from .lab import Lab

MODEL, WINDOW, LENGTH = "llama-3.1-8b", 512, 32768
PLANS = ("anchor-f", "anchor-i", "anchor-private", "anchor", "anchor-hybrid")
NOTE = f"{MODEL}, window and chunk {WINDOW}; fast weights in float32, without momentum, as the paper counts them."


def paper_shape() -> ModelShape:
    """The sizes of Llama-3.1-8B."""
    return ModelShape.from_config(shape_config(MODEL))


def paper_plan(name: str) -> Plan:
    """A preset on the paper's model, with the paper's window."""
    return preset(name, paper_shape(), window=WINDOW)


def fast_bytes(plan: Plan, shape: ModelShape) -> int:
    """Bytes of one sequence's fast weights in float32, momentum not counted, as the paper counts."""
    return state_bytes(plan, shape)["fast weights"]


def paper_bytes(name: str) -> int:
    """The same of a preset on the paper's model."""
    return fast_bytes(paper_plan(name), paper_shape())


def coverage(length: int, window: int, chunk: int, lag: int = 0) -> tuple[int, int, int]:
    """Tokens of a text of `length` that its last token sees in the window, in the state, and in neither."""
    near = min(window, length)
    far = max(0, (length - 1) // chunk - lag) * chunk
    return near, far, max(0, length - near - far)


def figure5(lab: Lab) -> dict[str, Any]:
    """State of every plan and what window and state cover of a text of 32K tokens."""
    every, shared = paper_bytes("anchor-f"), paper_bytes("anchor")
    heads = ["plan", "states", "bytes of fast weights", "times fewer than Anchor-F", "KV cache of full layers at 32K"]
    lines = [_state_line(name, every) for name in PLANS]
    near, far, neither = coverage(LENGTH, WINDOW, WINDOW)
    covered = [["tokens seen by the last of 32,768", "in the window", "in the state", "in neither"],
               ["window alone", f"{near:,}", "0", f"{LENGTH - near:,}"],
               ["window and state", f"{near:,}", f"{far:,}", f"{neither:,}"]]  # fmt: skip
    return {
        "tables": [
            {"title": "", "heads": heads, "rows": lines, "texts": 1},
            {"title": "Coverage", "heads": covered[0], "rows": covered[1:], "texts": 1},
        ],
        "claims": [
            claims.claim("sharing two states among six layers makes the state 16 times smaller", "201.0 to 12.6 MB",
                         f"{every / 1e6:.1f} to {shared / 1e6:.1f} MB, {every / shared:.1f} times",
                         claims.AGREES if every == 16 * shared else claims.NOT, from_shapes=True),
            claims.claim("window and state together cover the whole text", "drawn", f"{neither:,} tokens in neither",
                         claims.NOT if neither else claims.AGREES, from_shapes=True),
        ],
        "figures": [],
        "notes": [NOTE],
    }  # fmt: skip


def _state_line(name: str, every: int) -> list[str]:
    plan, shape = paper_plan(name), paper_shape()
    size, token = fast_bytes(plan, shape), state_bytes(plan, shape)["full attention per token"]
    return [name, str(len(plan.slots)), f"{size:,}", f"{every / size:.1f}", f"{token * LENGTH:,}"]


def figure7(lab: Lab) -> dict[str, Any]:
    """The 3:1 hybrid layer by layer."""
    plan, shape = paper_plan("anchor-hybrid"), paper_shape()
    rows = describe(plan, shape)
    full = [i for i, reach in enumerate(plan.layers) if reach.kind == "full"]
    groups = [slot.read for slot in plan.slots.values()]
    fits = full == list(range(3, shape.layers, 4)) and groups == [(i - 3, i - 2, i - 1) for i in full]
    heads = list(rows[0])
    size = fast_bytes(plan, shape)
    return {
        "tables": [{"title": "", "heads": heads, "rows": [[row[h] or "-" for h in heads] for row in rows], "texts": 4}],
        "claims": [
            claims.claim("three layers share one state that the first writes, the fourth has full attention", "drawn",
                         f"{len(groups)} states in {shape.layers} layers, {size:,} bytes, {len(full)} full",
                         claims.AGREES if fits else claims.NOT, from_shapes=True),
        ],
        "figures": [],
        "notes": [NOTE],
    }  # fmt: skip
