"""The suites that ask questions: commonsense, and MMLU as letters and as cloze."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anchorlm.core import MANY, UserError
from anchorlm.data import mmlu
from anchorlm.data.questions import TASKS, TaskSet, places, read_task
from anchorlm.eval import accuracy
from anchorlm.eval.options import EvalOptions, check_count, check_names
from anchorlm.eval.suite import Job, Material, Suite, span

Places = str | Mapping[str, str]
HEADS = [name + " norm" * (task.metric == "acc_norm") for name, task in TASKS.items()]


@dataclass(frozen=True)
class CommonsenseOptions:
    """data: a folder of task folders, {task: path}, or "hub"; tasks: only those, else all, or all that `data` names."""

    data: Places = ""
    tasks: str | tuple[str, ...] = ()


@dataclass(frozen=True)
class MmluOptions:
    """data: the folder of MMLU, one that holds it, or "hub"; subjects: only those; shots: by default the form's own."""

    data: Places = ""
    subjects: str | tuple[str, ...] = ()
    shots: int | None = None


def prepare_commonsense(options: EvalOptions, tokenizer: Any, store: Any) -> Material:
    own = options.own_of("commonsense", CommonsenseOptions)
    every = list(own.data) if isinstance(own.data, Mapping) else list(TASKS)
    named = own.tasks if options.gives("commonsense", "tasks") else every
    names = check_names("commonsense.tasks", named, TASKS)
    where = places("commonsense.data", own.data, {name: TASKS[name].files for name in names})
    return _material([read_task(name, where[name]).first(options.limit) for name in names], own)


def prepare_mmlu(suite: str, form: str, shots: int) -> Callable[[EvalOptions, Any, Any], Material]:
    """`prepare` of MMLU in one form, with as many shots as that form usually has."""

    def prepare(options: EvalOptions, tokenizer: Any, store: Any) -> Material:
        own = options.own_of(suite, MmluOptions)
        check_count(f"{suite}.shots", own.shots, least=0, most=MANY)
        given = own.subjects.split(",") if isinstance(own.subjects, str) else own.subjects
        if options.gives(suite, "subjects") and not own.subjects:
            raise UserError(f"eval option {suite}.subjects names nothing; give names, or leave it out for all")
        where = places(f"{suite}.data", own.data, {"mmlu": mmlu.FILES})["mmlu"]
        sets = mmlu.read_mmlu(where, form, shots if own.shots is None else own.shots, given)
        return _material([one.first(options.limit) for one in sets], own)

    return prepare


def _material(sets: Sequence[TaskSet], own: Any) -> Material:
    hashes = {one.name: one.hash for one in sets}
    data = {
        "names": list(dict.fromkeys(name for one in sets for name in one.files))[:20],
        "documents": sum(len(one.questions) for one in sets),
        "hash": hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()[:16],
        "tasks": hashes,
    }
    return Material(sets, data, asdict(own))


def _run(suite: str, pooled: bool) -> Callable[[str, Any, Job], dict[str, Any]]:
    def run(name: str, model: Any, job: Job) -> dict[str, Any]:
        assert job.material is not None
        return accuracy.measure(
            model, job.tokenizer, job.material.items, pooled=pooled, parts=job.parts, seed=job.options.seed,
            block=job.options.block, tell=lambda done, total: job.tell(f"{suite} {name}", done, total),
        )  # fmt: skip

    return run


def _line(row: dict[str, Any]) -> list[str]:
    tasks = [f"{task[task['metric']]['value']:.1%}" if (task := row["tasks"].get(name)) else "-" for name in TASKS]
    return _cells(row, tasks)


def _mmlu_line(row: dict[str, Any]) -> list[str]:
    values = [task["acc"]["value"] for task in row["tasks"].values()]
    return _cells(row, [f"{min(values):.0%} to {max(values):.0%}"])


def _cells(row: dict[str, Any], middle: list[str]) -> list[str]:
    return [f"{row['value']:.1%}", span(row["interval"], "{:.1%}"), *middle, str(row["truncated"]), str(row["n"])]


def _mmlu(suite: str, form: str, shots: int) -> Suite:
    return Suite(
        prepare=prepare_mmlu(suite, form, shots),
        run=_run(suite, pooled=True),
        lengths=lambda options: [],
        heads=("accuracy", "95 %", "by subject", "cut", "questions"),
        line=_mmlu_line,
        compare=accuracy.compare,
    )


QUESTIONS: dict[str, Suite] = {
    "commonsense": Suite(
        prepare=prepare_commonsense,
        run=_run("commonsense", pooled=False),
        lengths=lambda options: [],
        heads=("mean", "95 %", *HEADS, "cut", "questions"),
        line=_line,
        compare=accuracy.compare,
    ),
    "mmlu": _mmlu("mmlu", "letters", 5),
    "mmlu-cloze": _mmlu("mmlu-cloze", "cloze", 0),
}
