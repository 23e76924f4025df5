"""A budget of training tokens becomes the steps of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core import MOST, UserError, quantity
from ..settings import Recipe, StageSettings

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
LEAST_STEPS = 40  # of the optimiser; below, a step takes fewer passes than its recipe says


def parse_tokens(text: str | int) -> int:
    """Tokens of `1M`, `300K`, `1.5M` or `20000`. Raises UserError for anything else, for none at all and above MOST."""
    tokens = quantity(text, UNITS)
    if not tokens:
        raise UserError(f"--tokens {str(text)!r} is no number of tokens from 1 to {MOST:,}; write 1M, 300K or 20000")
    return tokens


@dataclass(frozen=True)
class Fit:
    """A recipe within a budget. sets: recipe keys to change; accumulate: passes of a step, of `published` ones."""

    sets: Mapping[str, Any]
    steps: tuple[int, ...]
    row: int  # tokens of one pass
    accumulate: int
    published: int

    def text(self) -> str:
        """Steps and tokens of each, and whether a step is smaller than the recipe's."""
        steps = " and ".join(f"{count:,}" for count in self.steps)
        passes = f"{self.accumulate} x {self.row:,}" if self.accumulate > 1 else f"{self.row:,}"
        fewer = f", {self.accumulate} of its {self.published} passes each, or fewer than {LEAST_STEPS} would remain"
        return f"{steps} steps of {passes} tokens" + (fewer if self.accumulate < self.published else "")


def fit(recipe: Recipe, tokens: int, where: str) -> Fit:
    """As many steps as the budget holds, shared out between the stages as the recipe does, with warm-ups in proportion.

    A step keeps the passes that the recipe accumulates, unless fewer than LEAST_STEPS would remain: then it has half as
    many, and so on. Raises UserError, which begins with `where`, for a budget below one step of each stage.
    """
    stages = {name: stage for name in ("stage1", "stage2") if (stage := getattr(recipe, name)).steps}
    row = recipe.data.length * recipe.data.batch
    accumulate = recipe.data.accumulate
    while accumulate > 1 and tokens // (row * accumulate) < LEAST_STEPS:
        accumulate //= 2
    total = tokens // (row * accumulate)
    if total < len(stages):
        each = f"one step of {row:,} tokens" + (" in each of its two stages" if len(stages) > 1 else "")
        raise UserError(f"{where}: --tokens {tokens:,} is below {row * len(stages):,}, {each}")
    counts = _shares(total, stages)
    sets = {"data.accumulate": accumulate}
    for name, count in counts.items():
        sets |= {f"{name}.steps": count, f"{name}.warmup": _warmup(stages[name], count)}
    return Fit(sets, tuple(counts.values()), row, accumulate, recipe.data.accumulate)


def _shares(total: int, stages: Mapping[str, StageSettings]) -> dict[str, int]:
    """Each stage's part of the steps, at least one."""
    if len(stages) == 1:
        return dict.fromkeys(stages, total)
    first, second = (stage.steps for stage in stages.values())
    begin = min(max(1, round(total * first / (first + second))), total - 1)
    return dict(zip(stages, (begin, total - begin), strict=True))


def _warmup(stage: StageSettings, steps: int) -> int:
    return min(stage.warmup, round(stage.warmup * steps / stage.steps))
