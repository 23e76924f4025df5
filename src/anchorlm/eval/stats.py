"""Intervals: bootstrap over documents for ratios of sums, Wilson for counts of successes; tests of paired scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

DRAWS = 1000
FLIPS, FLIPS_AT_ONCE = 10_000, 100


def bootstrap_ratio(sums: np.ndarray, counts: np.ndarray, seed: int = 0) -> list[float] | None:
    """95 % interval of sum(sums) / sum(counts) when documents (not tokens) are drawn anew; None for one document."""
    drawn = bootstrap_draws(sums, counts, seed)
    return None if drawn is None else middle(drawn)


def bootstrap_draws(sums: np.ndarray, counts: np.ndarray, seed: int = 0) -> np.ndarray | None:
    """The ratio [DRAWS] in as many redrawn sets of documents; documents that count nothing are left out."""
    kept = np.asarray(counts) > 0
    sums, counts = np.asarray(sums, float)[kept], np.asarray(counts, float)[kept]
    if len(sums) < 2:
        return None
    drawn = np.random.default_rng([seed, 95]).integers(len(sums), size=(DRAWS, len(sums)))
    return sums[drawn].sum(1) / counts[drawn].sum(1)


def middle(drawn: np.ndarray) -> list[float]:
    """The middle 95 % of the draws."""
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [float(low), float(high)]


def bootstrap_share(parts: np.ndarray, wholes: np.ndarray, seed: int = 0) -> list[float] | None:
    """95 % interval of sum(parts) / sum(wholes), signed sums of the same documents, which are drawn anew.

    None for one document, and where some draw leaves no whole to have a share of.
    """
    parts, wholes = np.asarray(parts, float), np.asarray(wholes, float)
    drawn = np.random.default_rng([seed, 95]).integers(len(parts), size=(DRAWS, len(parts)))
    totals = wholes[drawn].sum(1)
    if len(parts) < 2 or (totals <= 0).any():
        return None
    return middle(parts[drawn].sum(1) / totals)


def wilson(successes: int, trials: int) -> list[float] | None:
    """95 % interval of a share of successes; sane at 0 and at all, where the normal one is not."""
    if not trials:
        return None
    z, share = 1.959964, successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return [max(0.0, (centre - spread) / (1 + z * z / trials)), min(1.0, (centre + spread) / (1 + z * z / trials))]


def sign_flip(gaps: np.ndarray, seed: int = 0) -> float:
    """Two-sided p-value of paired differences [n]: how often their sum is as far from 0 with signs drawn at random.

    Fisher's randomisation test with FLIPS draws, the observed signs among them, so it is never 0.
    """
    gaps = np.asarray(gaps, float)
    gaps = gaps[gaps != 0]
    rng, seen = np.random.default_rng([seed, 50]), abs(gaps.sum())
    sums = np.concatenate([_flipped(gaps, rng) for _ in range(FLIPS // FLIPS_AT_ONCE)])
    return float((1 + (sums >= seen * (1 - 1e-12)).sum()) / (1 + len(sums)))


def _flipped(gaps: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.abs((2 * rng.integers(2, size=(FLIPS_AT_ONCE, len(gaps))) - 1) @ gaps)


def bootstrap_cells(cells: Sequence[np.ndarray], seed: int = 0) -> list[float] | None:
    """95 % interval of the mean of the cells' means, the texts of each cell drawn anew; None if none has two.

    cells: [texts, 2] each, sum and number of the scores of a text.
    """
    return bootstrap_groups([scores[:, None] for scores in cells], seed)


def bootstrap_groups(groups: Sequence[np.ndarray], seed: int = 0) -> list[float] | None:
    """The same where cells have texts in common: the texts of each group of cells are drawn anew, with all they say.

    groups: [texts, cells, 2] each. A cell of which no text was drawn is left out of that draw's mean.
    """
    if not any(len(scores) > 1 for scores in groups):
        return None
    rng = np.random.default_rng([seed, 95])
    drawn = [scores[rng.integers(len(scores), size=(DRAWS, len(scores)))].sum(1) for scores in groups]
    sums = np.concatenate(drawn, axis=1)
    with np.errstate(invalid="ignore"):
        return middle(np.nanmean(sums[..., 0] / sums[..., 1], axis=1))
