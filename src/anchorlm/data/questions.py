"""Sets of questions from files, folders or the hub: found, read, checked and worded before any model is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anchorlm.core import UserError, suggest
from anchorlm.data import layouts
from anchorlm.data.layouts import Layout, Question, to_question
from anchorlm.data.sources import file_kind, nonempty, read_records, read_text

HUB = "hub"  # in place of a path: fetch it


@dataclass(frozen=True)
class Files:
    """Where the questions of a task lie. `folders`: names of its folder inside a folder of several tasks.

    `patterns`: of files in its folder, the first that is met is taken; `hub`: the data set that has them, of which
    `wanted` (else the same patterns) is fetched.
    """

    folders: tuple[str, ...]
    patterns: tuple[str, ...]
    hub: str
    wanted: tuple[str, ...] = ()

    def inside(self, folder: Path) -> Path:
        """The task's own folder in a folder of several tasks, or that folder itself when it bears the task's name."""
        found = [folder / name for name in self.folders if (folder / name).is_dir()]
        return found[0] if found else folder if folder.name in self.folders else folder / self.folders[0]

    def find(self, task: str, place: str) -> list[Path]:
        """The files of `task` at `place`: its file, its folder, or "hub". Raises UserError with what brings them."""
        path = self._fetch() if place == HUB else Path(place).expanduser()
        if path.is_file():
            return [path]
        for pattern in self.patterns:
            if found := sorted(file for file in path.glob(pattern) if file.is_file()):
                return found
        lack = f"has none of {', '.join(self.patterns)}" if path.is_dir() else "does not exist"
        raise UserError(
            f"task {task}: {path} {lack}; `hf download {self.hub} --repo-type dataset --local-dir {path}` brings it"
        )

    def _fetch(self) -> Path:
        from anchorlm.convert.hub import data_snapshot

        return data_snapshot(self.hub, self.wanted or tuple(pattern.replace("**/", "*") for pattern in self.patterns))


@dataclass(frozen=True)
class Task:
    """A task of which every record is one question. `metric`: the figure that is usually reported, acc or acc_norm."""

    files: Files
    layouts: tuple[Layout, ...]
    metric: str = "acc"
    words: bool = False  # the last word must be the most likely one; there is nothing to choose from


@dataclass(frozen=True)
class TaskSet:
    """Questions of one task, in the order of the files."""

    name: str
    questions: tuple[Question, ...]
    metric: str
    words: bool = False
    files: tuple[str, ...] = field(default=(), compare=False)

    @property
    def hash(self) -> str:
        """16 hex digits that change with any word of any question."""
        return hashlib.sha256(repr(self.questions).encode()).hexdigest()[:16]

    def first(self, limit: int | None) -> TaskSet:
        return TaskSet(self.name, self.questions[:limit], self.metric, self.words, self.files)


def _arc(name: str) -> Task:
    patterns = (f"{name}/*test*.parquet", f"**/{name}-Test.jsonl", f"{name.lower().replace('-', '_')}*.jsonl",
                f"**/{name}_test.json")  # fmt: skip
    folders = (name.lower().replace("-", "_"), "arc", "ai2_arc")
    return Task(Files(folders, patterns, "allenai/ai2_arc"), layouts.ARC, "acc_norm" if "Chall" in name else "acc")


TASKS: dict[str, Task] = {
    "lambada": Task(
        Files(
            ("lambada", "lambada_openai"),
            ("data/lambada_test_en.jsonl", "**/lambada_test*.jsonl", "lambada_openai*.jsonl", "**/*test*.parquet"),
            "EleutherAI/lambada_openai",
        ),
        layouts.LAMBADA,
        words=True,
    ),
    "piqa": Task(
        Files(("piqa",), ("valid.jsonl", "**/*valid*.parquet", "**/valid*.jsonl", "**/piqa.jsonl"), "baber/piqa"),
        layouts.PIQA,
    ),
    "hellaswag": Task(
        Files(
            ("hellaswag",),
            ("**/*valid*.parquet", "hellaswag_val*.jsonl", "hellaswag_val*.txt", "hellaswag*.jsonl"),
            "Rowan/hellaswag",
        ),
        layouts.HELLASWAG,
        "acc_norm",
    ),
    "winogrande": Task(
        Files(
            ("winogrande",),
            ("winogrande_xl/*valid*.parquet", "dev.jsonl", "winogrande.jsonl", "**/winogrande_test.json"),
            "allenai/winogrande",
        ),
        layouts.WINOGRANDE,
    ),
    "arc_easy": _arc("ARC-Easy"),
    "arc_challenge": _arc("ARC-Challenge"),
    "openbookqa": Task(
        Files(
            ("openbookqa",),
            ("main/*test*.parquet", "**/Main/test.jsonl", "test.jsonl", "openbook_qa.jsonl", "**/openbookqa_test.json"),
            "allenai/openbookqa",
        ),
        layouts.OPENBOOKQA,
        "acc_norm",
    ),
}


def read_task(name: str, place: str) -> TaskSet:
    """All questions of a task of TASKS. `place`: its file or folder, a folder of task folders, or "hub"."""
    task = TASKS[name]
    files = task.files.find(name, place)
    found = [to_question(record, task.layouts, where) for file in files for where, record in _records(file)]
    if not found:
        raise UserError(f"task {name}: {files[0]} holds no question")
    return TaskSet(name, tuple(found), task.metric, task.words, tuple(file.name for file in files))


def places(option: str, given: Any, files: Mapping[str, Files]) -> dict[str, str]:
    """Where each task of `files` lies: `given` is a folder of task folders, {task: path}, or "hub" in place of a path.

    option: what the user calls it. Raises UserError.
    """
    if isinstance(given, Mapping):
        for name in given:
            if name not in files:
                raise UserError(f"{option}: task {name!r} is not among those asked for; {suggest(name, files)}")
        lacking = next((name for name in files if name not in given), None)
        if lacking:
            raise UserError(f"{option} names no place for the task {lacking}; give {option}.{lacking}=PATH or =hub")
        return {name: str(path) for name, path in given.items()}
    if not isinstance(given, str | Path) or not str(given):
        first = next(iter(files))
        raise UserError(
            f"{option} is {given or 'not given'}; give a folder of task folders ({first}, ...), or hub to fetch them"
        )
    return {name: _inside(option, str(given), name, files) for name in files}


def _inside(option: str, common: str, name: str, files: Mapping[str, Files]) -> str:
    path = Path(common).expanduser()
    if common == HUB:
        return HUB
    if not path.is_dir():
        what = f"is a file; name its task, as in {option}.{name}={path}" if path.exists() else "does not exist"
        raise UserError(f"{option}: {path} {what}")
    return str(files[name].inside(path))


def _records(file: Path) -> Iterator[tuple[str, Any]]:
    if file_kind(file) == ".txt":
        yield from _six_lines(file)
        return
    labels = file.with_name(f"{file.stem}-labels.lst")
    rows = [(f"{file}:{where}", record) for where, record in read_records(file)]
    if not labels.is_file():
        yield from rows
        return
    given = read_text(labels).split()
    if len(given) != len(rows):
        raise UserError(f"data {labels} has {len(given)} labels for the {len(rows)} records of {file.name}")
    for (where, record), label in zip(rows, given, strict=True):
        yield where, {"label": label, **record} if isinstance(record, dict) else record


def _six_lines(file: Path) -> Iterator[tuple[str, Any]]:
    """llama.cpp's HellaSwag: the context, the number of the right ending, four endings."""
    lines = nonempty(read_text(file), file).rstrip("\n").split("\n")
    if len(lines) % 6:
        raise UserError(f"data {file} has {len(lines)} lines; six a question are needed (context, label, four endings)")
    for at in range(0, len(lines), 6):
        yield f"{file}:{at + 1}", {"query": lines[at], "gold": lines[at + 1], "choices": lines[at + 2 : at + 6]}
