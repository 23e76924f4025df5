"""Recall from documents (SQuAD, FDA, SWDE, arXiv 2402.18668): what a text says far back, written on request."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchorlm.core import MANY, UserError, no_file
from anchorlm.data import TokenStore
from anchorlm.data.beyond import Asked, Prompts, contains
from anchorlm.data.comprehension import read_completions
from anchorlm.eval import scoring
from anchorlm.eval.options import EvalOptions, check_count
from anchorlm.eval.suite import (
    Job,
    Material,
    Suite,
    answers_in_parts,
    cell_table,
    compare_samples,
    digest_of,
    model_key,
    sampled_row,
    span,
)
from anchorlm.reading import beyond

TASKS = ("squad", "fda", "swde")
COMMAND = "hf download hazyresearch/based-{task} --repo-type dataset --local-dir based-{task}"


@dataclass(frozen=True)
class RecallOptions:
    """squad, fda, swde: files of records with `text` and the `value` that must follow it; a SQuAD file also does.

    samples: of each, at most; --limit lowers it. answer_tokens: that may be written
    """

    squad: str | None = None
    fda: str | None = None
    swde: str | None = None
    samples: int = 50
    answer_tokens: int | None = None


def prepare(options: EvalOptions, tokenizer: Any, store: TokenStore | None) -> Material:
    own = options.own_of("recall", RecallOptions)
    check_count("recall.samples", own.samples, most=MANY)
    check_count("recall.answer_tokens", own.answer_tokens)
    files = chosen_files(own)
    count = min(own.samples, options.limit or own.samples)
    prompts = Prompts(tokenizer, options.context, options.window, own.answer_tokens)
    asked: list[Asked] = []
    notes: list[str] = []
    for task, path in files.items():
        found, passed = prompts.make(task, read_completions(path), count, options.seed)
        if not found:
            reasons = "; ".join(f"{n:,} {reason}" for reason, n in passed.most_common())
            raise UserError(f"recall {task}: no text of {path} can be asked at context {options.context:,}: {reasons}")
        asked += found
        notes += [f"{task}: {n:,} texts {reason} passed over" for reason, n in passed.most_common()]
    data = {"names": list(files.values()), "hash": digest_of(asked)}
    return Material(asked, data, asdict(own) | {"samples": count}, tuple(notes))


def chosen_files(own: RecallOptions) -> dict[str, str]:
    """Task -> file. Raises UserError, with what brings them, for none or one that is not there."""
    files = {task: path for task in TASKS if (path := getattr(own, task))}
    if not files:
        wanted = ", ".join(f"--set recall.{task}=FILE" for task in TASKS)
        raise UserError(f"suite recall needs one of {wanted}; get one: {COMMAND.format(task='fda')}")
    for task, path in files.items():
        if not Path(path).is_file():
            raise UserError(f"recall.{task}: data {path} {no_file(path)}; get one: {COMMAND.format(task=task)}")
    return files


def run(name: str, model: Any, job: Job) -> dict[str, Any]:
    assert job.material is not None
    asked: list[Asked] = job.material.items
    tasks = list(dict.fromkeys(_task(item) for item in asked))
    note = beyond(model, job.options.context)
    asked = [] if note else asked

    def answer(item: Asked) -> str:
        return scoring.write(model, job.tokenizer, item.ids, item.room, job.options.block, until="\n")

    written = answers_in_parts(job, model_key("recall", model, job), asked, answer, f"recall {name}")
    samples = [_scored(item, text) for item, text in zip(asked, written, strict=True)]
    cells = [{"id": task, "task": task, "note": note} for task in tasks]
    return sampled_row(cells, samples, job.options.seed, metric="answer contained")


def _task(item: Asked) -> str:
    return item.name.partition("/")[0]


def _scored(item: Asked, written: str) -> dict[str, Any]:
    return {"id": item.name, "cell": _task(item), "score": contains(written, item.answers), "written": written,
            "answers": list(item.answers), "distance": item.distance, "tokens": len(item.ids)}  # fmt: skip


def line(row: dict[str, Any]) -> list[str]:
    distances = sorted(sample["distance"] for sample in row["samples"])
    back = f"{distances[0]:,} to {distances[-1]:,}"
    return [f"{row['value']:.1%}", span(row["interval"], "{:.1%}"), str(row["n"]), back]


SUITE = Suite(
    prepare=prepare,
    run=run,
    lengths=lambda options: [options.context],
    heads=("contained", "95 %", "texts", "tokens back"),
    line=line,
    compare=compare_samples,
    detail=lambda result: cell_table(result, "task", lambda cell: cell["task"]),
)
