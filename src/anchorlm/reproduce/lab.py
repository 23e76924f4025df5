"""What an item measures with: its scale, the texts, and the trained rows, each trained and measured once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..analyze.explain.job import Job as AnalysisJob
from ..analyze.explain.job import Options, Target
from ..analyze.explain.run import ANALYSES
from ..analyze.probes import cut_pieces
from ..analyze.tally import change, loss
from ..core import UserError
from ..data import TokenStore
from ..eval import SUITES, EvalOptions
from ..eval.suite import Job as EvalJob
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
        """Train and measure what the run lacks; returns it. Raises Untrained, before anything is written, where none of
        its rows is trained and none may be."""
        learned = [row for row in run.chosen() if row.recipe is not None]
        if learned and not run.job.train_rows and not any(row.ready for row in learned):
            trained(run, [row.row.name for row in learned], least=1)
        fill(run, self.progress, self.say)
        return run


class Untrained(UserError):
    """An item lacks rows that are trained, and none may be trained now."""


def trained(run: Run, names: Sequence[str], least: int) -> list[str]:
    """Those of the rows that are trained. Raises Untrained when fewer than `least` are."""
    found = [name for name in names if run.built[name].ready]
    if len(found) < least:
        missing = ", ".join(name for name in names if name not in found)
        raise Untrained(f"rows that are not trained: {missing}; leave out --no-train")
    return found


def untrained(run: Run, names: Sequence[str]) -> list[str]:
    """A line that names the rows which are not trained, if there are any, and where each stands."""
    missing = [f"`{name}` ({run.built[name].state})" for name in names if not run.built[name].ready]
    return [f"Rows that are still to come: {', '.join(missing)}."] if missing else []


def analysed(lab: Lab, run: Run, name: str, what: str, store: TokenStore | None = None) -> dict[str, Any]:
    """An analysis of a trained row at the scale's sizes, kept once measured. store: by default the evaluation text."""
    row, text, options = run.built[name], store or run.stores[TEST], analysis_options(lab.scale, what)
    digest = row.digest()
    key = {"reproduce": what, "row": digest, "text": [text.content_hash, text.tokenizer_hash]}

    def compute() -> dict[str, Any]:
        model, tokenizer = row.open()
        target = Target(name, model.plan, model.shape)
        ANALYSES[what].check(target, options)
        job = AnalysisJob(model, target, tokenizer, text, options, run.archive.parts, digest, lab.progress)
        return ANALYSES[what].run(job)

    return run.archive.parts.run(key | {"options": options.model_dump(mode="json")}, compute)


def check_text(lab: Lab, what: str, store: TokenStore) -> None:
    """Raise UserError for a text too short for that analysis."""
    options = analysis_options(lab.scale, what)
    cut_pieces(store, options.context, options.documents, f"reproduce ({what})")


def analysis_options(scale: Scale, what: str) -> Options:
    """What an analysis is asked at this scale."""
    return Options.of(**{"seed": scale.seed, "window": scale.window} | getattr(scale.measures, what))


def eval_options(scale: Scale, suite: str) -> EvalOptions:
    """What a suite is asked at this scale."""
    return EvalOptions.of(**{"seed": scale.seed, "window": scale.window} | getattr(scale.measures, suite))


def ask(lab: Lab, run: Run, suite: str) -> EvalJob:
    """What a suite of `anchorlm eval` asks of every row at the scale's sizes. Raises UserError as that verb does."""
    options, store = eval_options(lab.scale, suite), run.stores[TEST]
    material = SUITES[suite].prepare(options, run.tokenizer, store if suite == "niah" else None)
    return EvalJob(store, run.tokenizer, options, run.archive.parts, lab.progress, material)


def answered(lab: Lab, run: Run, suite: str, asked: EvalJob, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The suite's row of each of these rows, one of them open at a time."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        model, _ = run.built[name].open()
        found[name] = SUITES[suite].run(name, model, asked)
        del model
        gc.collect()  # wrapped layers refer to each other
    return found


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
