"""A claim of the paper beside what was measured, and whether both point the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

AGREES, NOT, UNCLEAR, NOT_COMPARABLE = "agrees", "disagrees", "unclear", "not comparable"
Estimate = Mapping[str, Any]


def claim(
    text: str, paper: str, ours: str, verdict: str, why: Mapping[str, str] | None = None, from_shapes: bool = False
) -> dict[str, Any]:
    """One row of a page. why: by verdict, what is known about it; verdicts without a word have none. from_shapes:
    whether it follows from the plan alone, whatever is trained."""
    facts = {"claim": text, "paper": paper, "ours": ours, "verdict": verdict, "why": (why or {}).get(verdict, "")}
    return facts | {"from_shapes": from_shapes}


def above(estimate: Estimate | None, level: float = 0.0) -> str:
    """Whether a value that the paper has above `level` is: by its whole interval, or by itself when it has none."""
    if estimate is None:
        return NOT_COMPARABLE
    low, high = _ends(estimate)
    return AGREES if low > level else NOT if high < level else UNCLEAR


def below(estimate: Estimate | None, level: float = 0.0) -> str:
    """The same for a value that the paper has below `level`."""
    return {AGREES: NOT, NOT: AGREES}.get(found := above(estimate, level), found)


def apart(higher: Estimate | None, lower: Estimate | None) -> str:
    """Whether the first of two figures that are not paired is the higher one: agrees when their intervals are apart."""
    if higher is None or lower is None:
        return NOT_COMPARABLE
    (low, high), (least, most) = (_ends(one) for one in (higher, lower))
    return AGREES if low > most else NOT if high < least else UNCLEAR


def no_loss(rise: Estimate | None, whole: Estimate | None) -> str:
    """Whether a part is not missed: agrees unless the loss rises for certain. whole: the rise without all of it; where
    that is not above 0 for certain, there is nothing that could be missed."""
    if above(whole) != AGREES:
        return NOT_COMPARABLE
    return {AGREES: NOT}.get(above(rise), AGREES) if rise else NOT_COMPARABLE


def within(estimate: Estimate | None, reach: float) -> str:
    """Whether a value that the paper has near 0 is less than `reach` from it."""
    if estimate is None:
        return NOT_COMPARABLE
    low, high = _ends(estimate)
    return AGREES if -reach < low and high < reach else NOT if low > reach or high < -reach else UNCLEAR


def _ends(estimate: Estimate) -> tuple[float, float]:
    low, high = estimate["interval"] or (estimate["value"], estimate["value"])
    return low, high


def together(*verdicts: str) -> str:
    """Of a claim in several parts: the worst of them."""
    return max(verdicts, key=(AGREES, UNCLEAR, NOT, NOT_COMPARABLE).index)


def nats(estimate: Estimate | None) -> str:
    """`+0.123 nats (0.100 to 0.150)`."""
    pattern = "{:+.3f}"
    return "not measured" if estimate is None else f"{_put(pattern, estimate['value'])} nats{_span(estimate, pattern)}"


def share(estimate: Estimate | None) -> str:
    """`83 % (71 to 95)`."""
    if estimate is None:
        return "there is none"
    ends = estimate["interval"]
    return f"{100 * estimate['value']:.0f} %" + (f" ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})" if ends else "")


def perplexity(estimate: Estimate | None) -> str:
    """`20.81` of a loss in nats a token."""
    return "-" if estimate is None else figure(math.exp(estimate["value"]))


def perplexity_span(estimate: Estimate | None) -> str:
    """`18.20 to 23.90`: the 95 % interval of a perplexity."""
    if estimate is None or estimate["interval"] is None:
        return "-"
    return " to ".join(figure(math.exp(end)) for end in estimate["interval"])


def figure(value: float | None) -> str:
    """A perplexity or an error with as many digits as mean something."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def number(estimate: Estimate | None, digits: int = 3) -> str:
    """`0.714 (0.674 to 0.755)`."""
    pattern = f"{{:.{digits}f}}"
    return "-" if estimate is None else _put(pattern, estimate["value"]) + _span(estimate, pattern)


def percent(estimate: Estimate | None) -> str:
    """`71.4 % (67.4 to 75.5)` of a share."""
    if estimate is None or estimate["value"] is None:
        return "-"
    ends = estimate["interval"]
    return f"{100 * estimate['value']:.1f} %" + (f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})" if ends else "")


def points(estimate: Estimate | None) -> str:
    """`-3.3 points (-10.0 to +3.3)` of a difference of two shares."""
    if estimate is None or estimate["value"] is None:
        return "not measured"
    ends = estimate["interval"]
    span = f" ({100 * ends[0]:+.1f} to {100 * ends[1]:+.1f})" if ends else ""
    return f"{100 * estimate['value']:+.1f} points{span}"


def _span(estimate: Estimate, pattern: str) -> str:
    ends = estimate["interval"]
    return f" ({_put(pattern, ends[0])} to {_put(pattern, ends[1])})" if ends else ""


def _put(pattern: str, value: float) -> str:
    """The figure; one that rounds to 0 has no minus."""
    text = pattern.format(value)
    return pattern.format(0.0) if float(text) == 0 else text
