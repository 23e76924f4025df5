"""What an item measures with: its scale, the texts, and the trained rows, each trained and measured once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..analyze.tally import change, loss
from ..core import UserError
from ..eval.suite import Progress
from ..results.measure import TEST
from ..results.run import Job, Run, fill, prepare
from .scale import Scale

Documents = list[dict[str, list[float]]]  # of each piece, by group: [sum of nats, number of targets]
Estimate = dict[str, Any]
GROUPS = ("all", "cross_window")


@dataclass(frozen=True)
class Lab:
    """`job` names texts, dtype, device and the folder under which every table of rows has its own."""

    scale: Scale
    job: Job
    progress: Progress | None = None
    say: Callable[[str], None] = field(default=print)

    def prepare(self, kind: str, names: Sequence[str]) -> Run:
        """The named rows of a table, checked; nothing is run. Raises UserError as `results.run_table` does."""
        job = replace(self.job, out=self.job.out / kind, rows=tuple(names), weights=True)
        return prepare(self.scale.table(kind), job)

    def fill(self, run: Run) -> Run:
        """Train and measure what the run lacks; returns it."""
        fill(run, self.progress, self.say)
        return run


def trained(run: Run, names: Sequence[str], least: int) -> list[str]:
    """Those of the rows that are trained. Raises UserError when fewer than `least` are, as without training."""
    found = [name for name in names if run.built[name].ready]
    if len(found) < least:
        missing = ", ".join(name for name in names if name not in found)
        raise UserError(f"rows that are not trained: {missing}; leave out --no-train")
    return found


def untrained(run: Run, names: Sequence[str]) -> list[str]:
    """A line that names the rows which are not trained, if there are any, and where each stands."""
    missing = [f"`{name}` ({run.built[name].state})" for name in names if not run.built[name].ready]
    return [f"Rows that are still to come: {', '.join(missing)}."] if missing else []


def documents(run: Run, name: str) -> Documents:
    """The pieces of the evaluation text as a measured row scored them."""
    return run.archive.known(run.built[name]).figures[f"perplexity {TEST}"].value["documents"]


def losses(rows: Documents, base: Documents | None, seed: int) -> dict[str, Estimate | None]:
    """By group: nats a token with a 95 % interval over pieces; against `base` their rise, paired by piece."""
    if base is None:
        return {group: loss(rows, group, seed) for group in GROUPS}
    return {group: change(rows, base, group, seed) for group in GROUPS}


def mean_documents(several: Sequence[Documents]) -> Documents:
    """Piece by piece the mean of what several models scored."""
    count = len(several)
    return [
        {group: [sum(piece[group][0] for piece in pieces) / count, pieces[0][group][1]] for group in GROUPS}
        for pieces in zip(*several, strict=True)
    ]
