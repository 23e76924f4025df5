"""MMLU (Hendrycks et al. 2021) from the authors' tables or the hub's, worded as lm-evaluation-harness words it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorlm.core import UserError, suggest
from anchorlm.data.layouts import Question
from anchorlm.data.questions import Files, TaskSet
from anchorlm.data.sources import file_kind, in_form, items, read_records, read_text, words

LETTERS = "ABCD"
COLUMNS = ("question", "choice0", "choice1", "choice2", "choice3", "answer")
FILES = Files(
    ("mmlu",),
    ("test/*.csv", "all/test*.parquet", "*/test*.parquet"),
    "cais/mmlu",
    ("all/test*.parquet", "all/dev*.parquet"),
)


@dataclass(frozen=True)
class Item:
    """A question of one subject with four choices, before it is put into words."""

    question: str
    choices: tuple[str, ...]
    gold: int


def read_mmlu(place: str, form: str = "letters", shots: int = 5, subjects: Sequence[str] = ()) -> list[TaskSet]:
    """One set of questions for each subject (all, or those named), each led by the first `shots` of its dev questions.

    form: "letters" (the choices are shown and a letter is scored) or "cloze" (the choices' own words are scored).
    Raises UserError for missing or damaged files, an unknown subject, and too few dev questions.
    """
    files = FILES.find("mmlu", place)
    test = _by_subject(files)
    for name in subjects:
        if name not in test:
            raise UserError(f"subject {name!r} is unknown; {suggest(name, test)}")
    dev = _by_subject([_dev(file) for file in files]) if shots else {}
    return [
        TaskSet(subject, worded(subject, items, dev.get(subject, ()), form, shots), "acc")
        for subject, items in sorted(test.items())
        if not subjects or subject in subjects
    ]


def worded(subject: str, items: Sequence[Item], dev: Sequence[Item], form: str, shots: int) -> tuple[Question, ...]:
    """The items as questions, each after the description and the answered dev questions."""
    if len(dev) < shots:
        raise UserError(f"mmlu {subject} has {len(dev)} dev questions; {shots} shots were asked for")
    kind = "multiple choice questions" if form == "letters" else "questions"
    head = f"The following are {kind} (with answers) about {subject.replace('_', ' ')}.\n\n"
    for shot in dev[:shots]:
        head += f"{_ask(shot, form)} {_choices(shot, form)[shot.gold]}\n\n"
    return tuple(Question((head + _ask(item, form),), _choices(item, form), item.gold) for item in items)


def _ask(item: Item, form: str) -> str:
    if form != "letters":
        return f"Question: {item.question.strip()}\nAnswer:"
    shown = "".join(f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, item.choices, strict=True))
    return f"{item.question.strip()}\n{shown}Answer:"


def _choices(item: Item, form: str) -> tuple[str, ...]:
    return tuple(LETTERS) if form == "letters" else item.choices


def _by_subject(files: Sequence[Path]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for file in files:
        table = file_kind(file) == ".csv"
        own = file.stem.removesuffix("_test").removesuffix("_dev") if table else file.parent.name
        for number, row in _table(file) if table else read_records(file):
            fields = row if isinstance(row, dict) else {}
            with in_form(f"data {file}:{number} is not MMLU inside"):
                found.setdefault(words(fields.get("subject") or own), []).append(_item(fields, f"{file}:{number}"))
    return found


def _item(row: dict[str, Any], where: str) -> Item:
    fields = ("question", "choices", "answer") if "choices" in row else COLUMNS
    missing = [name for name in fields if row.get(name) is None]
    if missing:
        has = ", ".join(row) or "none"
        raise UserError(f"data {where} has no field {missing[0]!r} (it has: {has}; known: {'/'.join(fields)})")
    choices = tuple(items(row["choices"])) if "choices" in row else tuple(row[name] for name in COLUMNS[1:5])
    answer = str(row["answer"]).strip()
    number = "ABCD0123".find(answer) if len(answer) == 1 else -1
    if len(choices) != 4 or number < 0:
        raise UserError(
            f"data {where}: answer {answer!r} of {len(choices)} choices; A to D or 0 to 3 of four is needed"
        )
    return Item(words(row["question"]), tuple(map(str, choices)), number % 4)


def _table(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a .csv file; the authors' own have no header."""
    try:
        rows = list(csv.reader(io.StringIO(read_text(file), newline="")))
    except csv.Error as error:
        raise UserError(f"data {file} is a damaged table: {error}") from None
    head = rows.pop(0) if rows and "question" in rows[0] else COLUMNS
    yield from ((number, dict(zip(head, row))) for number, row in enumerate(rows, start=1))


def _dev(file: Path) -> Path:
    """The dev file beside a test file: dev/X_dev.csv, X/dev-00000-of-00001.parquet."""
    folder = file.parent.parent / "dev" if file.parent.name == "test" else file.parent
    found = folder / file.name.replace("_test.", "_dev.").replace("test-", "dev-")
    if found == file:
        raise UserError(
            f"mmlu: {file} is not named X_test.csv or test-X, so its dev questions are not found; set shots=0"
        )
    if not found.is_file():
        raise UserError(f"mmlu: {found} does not exist; the examples before a question come from it; or set shots=0")
    return found
