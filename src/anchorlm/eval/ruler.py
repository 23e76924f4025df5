"""RULER with any causal model: every task at every length, answers scored as published."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchorlm.core import MANY, UserError, no_file
from anchorlm.data import TokenStore
from anchorlm.data.comprehension import HOTPOTQA, SQUAD, Question, read_hotpotqa, read_squad
from anchorlm.data.ruler import TASKS, Fitter, Sample, World, make, score
from anchorlm.data.ruler.qa import Library
from anchorlm.data.ruler.words import Essay, essay_of, packaged_essay
from anchorlm.eval import scoring
from anchorlm.eval.options import EvalOptions, check_count, check_names
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

LEAST = 256  # tokens; shorter prompts hold little but the question
FILES = {"qa_1": ("squad", read_squad, SQUAD), "qa_2": ("hotpotqa", read_hotpotqa, HOTPOTQA)}


@dataclass(frozen=True)
class RulerOptions:
    """tasks: names, or all that can be made. samples: of each task and length; --limit lowers it.

    squad, hotpotqa: files with the questions of qa_1 and qa_2. answer_tokens: for every answer; as published by default
    """

    tasks: str | tuple[str, ...] = "all"
    samples: int = 10
    squad: str | None = None
    hotpotqa: str | None = None
    answer_tokens: int | None = None


def chosen_tasks(options: RulerOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tasks to run, and a line for each that "all" leaves out for want of its file.

    Raises UserError for an unknown task, and for a named one whose file is not given.
    """
    missing = {
        task: f"task {task} needs questions: --set ruler.{name}=FILE (get one: {command})"
        for task, (name, _, command) in FILES.items()
        if not getattr(options, name)
    }
    if options.tasks == "all":
        left_out = tuple(f"{line}; left out" for line in missing.values())
        return tuple(name for name in TASKS if name not in missing), left_out
    tasks = check_names("ruler.tasks", options.tasks, TASKS)
    for task in tasks:
        if task in missing:
            raise UserError(f"ruler {missing[task]}")
    return tasks, ()


def prepare(options: EvalOptions, tokenizer: Any, store: TokenStore | None) -> Material:
    """Every sample of every task and length."""
    own = options.own_of("ruler", RulerOptions)
    check_count("ruler.samples", own.samples, most=MANY)
    check_count("ruler.answer_tokens", own.answer_tokens)
    for length in options.prompt_lengths:
        if length < LEAST:
            raise UserError(f"ruler length is {length}; the shortest is {LEAST} tokens")
    tasks, notes = chosen_tasks(own)
    world = World(_essay(options, tokenizer, store), _libraries(tasks, own))
    count = min(own.samples, options.limit or own.samples)
    fitter = Fitter(tokenizer, own.answer_tokens)
    samples = [
        sample
        for length in options.prompt_lengths
        for task in tasks
        for sample in make(task, int(length), count, fitter, world, options.seed)
    ]
    used = [name for name in (own.squad, own.hotpotqa) if name]
    data = {"names": [world.essay.name, *used], "hash": digest_of(samples), "truncated": _too_long(samples)}
    return Material(samples, data, asdict(own) | {"tasks": tasks, "samples": count}, (*notes, *_alone(samples)))


def _essay(options: EvalOptions, tokenizer: Any, store: TokenStore | None) -> Essay:
    return essay_of(store, tokenizer, 4 * max(options.prompt_lengths)) if store else packaged_essay()


def _libraries(tasks: tuple[str, ...], own: RulerOptions) -> dict[str, Library]:
    return {task: Library(_questions(task, getattr(own, FILES[task][0]))) for task in tasks if task in FILES}


def _questions(task: str, path: str) -> list[Question]:
    name, reader, command = FILES[task]
    if not Path(path).is_file():
        raise UserError(f"ruler.{name}: data {path} {no_file(path)}; get one: {command}")
    return reader(path)


def _too_long(samples: list[Sample]) -> int:
    return sum(len(sample.ids) + sample.room > sample.length for sample in samples)


def _alone(samples: list[Sample]) -> list[str]:
    """A line for each task whose shortest prompts hold nothing to tell the needle from."""
    lonely = {(s.task, s.length) for s in samples if s.task in ("niah_multikey_2", "niah_multikey_3")
              and s.facts["needles"] == 1}  # fmt: skip
    return [f"task {task}: some prompts of {length} tokens hold one needle only" for task, length in sorted(lonely)]


def run(name: str, model: Any, job: Job) -> dict[str, Any]:
    assert job.material is not None
    samples: list[Sample] = job.material.items
    lengths = {length: beyond(model, int(length)) for length in job.options.prompt_lengths}
    asked = [sample for sample in samples if not lengths[sample.length]]

    def answer(sample: Sample) -> str:
        return scoring.write(model, job.tokenizer, sample.ids, sample.room, job.options.block)

    written = answers_in_parts(job, model_key("ruler", model, job), asked, answer, f"ruler {name}")
    cells = {f"{s.task}/{s.length}": {"id": f"{s.task}/{s.length}", "task": s.task, "length": s.length,
                                      "note": lengths[s.length]} for s in samples}  # fmt: skip
    scored = [_scored(sample, text) for sample, text in zip(asked, written, strict=True)]
    facts = {"metric": "string match", "truncated": _too_long(asked)}
    return sampled_row(list(cells.values()), scored, job.options.seed, **facts)


def _scored(sample: Sample, written: str) -> dict[str, Any]:
    return {
        "id": sample.name,
        "cell": f"{sample.task}/{sample.length}",
        "score": score(sample.task, written, sample.answers),
        "written": written,
        "answers": list(sample.answers),
        "tokens": len(sample.ids),
        "room": sample.room,
        **sample.facts,
    }


def line(row: dict[str, Any]) -> list[str]:
    tasks = len({cell["task"] for cell in row["cells"]})
    return [f"{row['value']:.1%}", span(row["interval"], "{:.1%}"), str(tasks), str(row["n"]), str(row["truncated"])]


SUITE = Suite(
    prepare=prepare,
    run=run,
    lengths=lambda options: options.prompt_lengths,
    heads=("score", "95 %", "tasks", "samples", "truncated"),
    line=line,
    compare=compare_samples,
    reads_text=True,
    detail=lambda result: cell_table(result, "task", lambda cell: cell["task"], lambda cell: f"{cell['length']:,}"),
)
