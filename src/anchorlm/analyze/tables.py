"""A placement's figures as rows of text, for a terminal and for the documentation."""

from __future__ import annotations

from typing import Any

from ..describe import layers_text

Row = dict[str, Any]


def layer_rows(result: Row, count: int | None = 12) -> list[Row]:
    """The `count` most needed layers: share of the window's whole cost, and the change of loss by group."""
    return [
        {"layer": row["layer"], **_costs(result, row), "matters": row["matters"], "probes": probes(row)}
        for row in result["layers"][:count]
    ]


def head_rows(result: Row, count: int | None = 12) -> list[Row]:
    """The same of single KV heads, as far as they were measured; `18.2` is head 2 of layer 18."""
    return [{"head": unit((row["layer"], row["head"])), **_costs(result, row)} for row in result["heads"][:count]]


def _costs(result: Row, row: Row) -> Row:
    teacher = result["teacher"]
    changes = {name: signed(row["change"].get(name)) for name in ("all", "beyond", "needle") if name in teacher}
    return {
        "share": percent(row["share"]),
        **changes,
        "needles found": found(row["change"].get("exact"), teacher.get("exact")),
    }


def curve_rows(result: Row) -> list[Row]:
    """Each plan that was measured: its bytes, its layers, its loss."""
    return [
        {
            "plan": point["series"],
            "layers": "all" if point["series"] == "teacher" else layers_text(point["layers"]),
            "bytes": point["bytes"],
            "loss": plain(point["loss"]["all"]),
            "beyond": plain(point["loss"]["beyond"]),
            "needle": plain(point["loss"]["needle"]),
            "needles found": hits(point["loss"]["exact"]),
        }
        for point in result["pareto"]
    ]


def probes(row: Row) -> str:
    """How many probes were measured, and whether the answer was clear before the rest."""
    return f"{row['probes']}{' (clear)' if row['ended_early'] else ''}"


def percent(estimate: Row | None) -> str:
    """`8.1 % (5.0 to 11.2)`."""
    if estimate is None:
        return "-"
    ends = estimate["interval"]
    return f"{100 * estimate['value']:.1f} %" + (f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})" if ends else "")


def signed(estimate: Row | None) -> str:
    """`+0.032 (+0.020 to +0.041)`."""
    if estimate is None:
        return "-"
    ends = estimate["interval"]
    return f"{estimate['value']:+.3f}" + (f" ({ends[0]:+.3f} to {ends[1]:+.3f})" if ends else "")


def plain(estimate: Row | None) -> str:
    if estimate is None:
        return "-"
    ends = estimate["interval"]
    return f"{estimate['value']:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")


def hits(estimate: Row | None) -> str:
    """`5 of 6`."""
    return "-" if estimate is None else f"{round(estimate['value'] * estimate['targets'])} of {estimate['targets']}"


def found(change: Row | None, teacher: Row | None) -> str:
    """How many needles more or fewer are found than by the teacher on the same prompts."""
    if change is None or teacher is None:
        return "-"
    return f"{round(change['value'] * change['targets']):+d} of {change['targets']}"


def unit(value: Any) -> str:
    """A layer as `18`, one KV head of it as `18.2`."""
    return ".".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def placed(result: Row) -> str:
    """`full in 18, 23; heads in 7.1, 20.0; swiglu-ttt in 7, 8`; `kept in 4-5 (184), 0-3 (23)`: tokens of a KV head."""
    kinds = {kind: _where(result, kind, units) for kind, units in result["placed"].items() if units}
    return "; ".join(f"{kind} in {units}" for kind, units in kinds.items()) or "a window in every layer"


def _where(result: Row, kind: str, units: list[Any]) -> str:
    """The units in order; layers with kept tokens by how many each KV head has, most first."""
    if kind != "kept":
        return ", ".join(map(unit, sorted(units)))
    counts: dict[tuple[int, ...], list[int]] = {}
    for layer in units:
        slots = [slot for slot in result["plan"]["slots"].values() if slot["write"] == layer]
        tokens = sorted({slot["options"]["tokens"] for slot in slots}, reverse=True)
        counts.setdefault(tuple(tokens), []).append(layer)
    parts = sorted(counts.items(), reverse=True)
    return ", ".join(f"{layers_text(layers)} ({' and '.join(map(str, tokens))})" for tokens, layers in parts)
