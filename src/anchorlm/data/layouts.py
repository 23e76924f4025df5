"""Records of question files as questions: layouts of the hub, the authors, llm-foundry, LLM-Adapters and llama.cpp.

Whatever the layout, the question is worded as lm-evaluation-harness words that task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anchorlm.core import UserError
from anchorlm.data.sources import in_form, items, words

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """What is read, the ways it may go on (a space comes before each), and which of them is right.

    contexts: one for all choices, or one for each of them.
    """

    contexts: tuple[str, ...]
    choices: tuple[str, ...]
    gold: int

    def pairs(self) -> list[tuple[str, str]]:
        """(context, continuation) of each choice."""
        contexts = self.contexts * len(self.choices) if len(self.contexts) == 1 else self.contexts
        return [(context, f" {choice}") for context, choice in zip(contexts, self.choices, strict=True)]


@dataclass(frozen=True)
class Layout:
    """Records with these `fields`, and how one becomes a question."""

    fields: tuple[str, ...]
    make: Callable[[Record], Question]


def to_question(record: Any, layouts: tuple[Layout, ...], where: str) -> Question:
    """The record by the first layout it has all fields of. Raises UserError that names a missing field."""
    has = record if isinstance(record, Mapping) else {}
    layout = next((layout for layout in layouts if all(field in has for field in layout.fields)), None)
    if layout is None:
        nearest = max(layouts, key=lambda layout: sum(field in has for field in layout.fields) / len(layout.fields))
        missing = next(field for field in nearest.fields if field not in has)
        known = ", or ".join("/".join(layout.fields) for layout in layouts)
        raise UserError(f"data {where} has no field {missing!r} (it has: {', '.join(has) or 'none'}; known: {known})")
    with in_form(f"data {where} has the fields {'/'.join(layout.fields)}, but not their form"):
        question = _whole(layout.make(has))
    if not 0 <= question.gold < len(question.choices):
        raise UserError(f"data {where}: the answer is number {question.gold} of {len(question.choices)} choices")
    return question


def _whole(question: Question) -> Question:
    """The question, if all of it is text and there is one context, or one for each choice."""
    for part in (*question.contexts, *question.choices):
        words(part)
    if len(question.contexts) not in (1, len(question.choices)):
        raise ValueError(f"{len(question.contexts)} contexts for {len(question.choices)} choices")
    return question


def asked(question: str, choices: Any, gold: int) -> Question:
    return Question((f"Question: {words(question)}\nAnswer:",), tuple(map(str, items(choices))), gold)


def _bare(query: str) -> str:
    """llm-foundry stores some questions with the words around them."""
    return query.removeprefix("Question: ").removesuffix("\n")


def _last_word(record: Record) -> Question:
    words = record["text"].split(" ")
    return Question((" ".join(words[:-1]),), (words[-1],), 0)


def _continued(record: Record) -> Question:
    return Question((record["context"],), (record["continuation"],), 0)


def _goal(record: Record) -> Question:
    return asked(record["goal"], (record["sol1"], record["sol2"]), int(record["label"]))


def _foundry(record: Record) -> Question:
    return asked(_bare(record["query"]), record["choices"], int(record["gold"]))


def _plain(record: Record) -> Question:
    return Question((record["query"],), tuple(items(record["choices"])), int(record["gold"]))


def _endings(record: Record) -> Question:
    context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    return Question((_unmarked(context),), tuple(map(_unmarked, items(record["endings"]))), int(record["label"]))


def _unmarked(text: str) -> str:
    """WikiHow's marks such as [title] and [step] taken out, in the order lm-evaluation-harness does it."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _blank(record: Record) -> Question:
    before, _, after = record["sentence"].partition("_")
    return _schema([before + record[name] for name in ("option1", "option2")], after, int(record["answer"]) - 1)


def _filled(record: Record) -> Question:
    return _schema(items(record["context_options"]), record["continuation"], int(record["gold"]))


def _schema(contexts: list[str], rest: str, gold: int) -> Question:
    """The same rest after each filling of the blank: partial scoring (Trinh and Le 2018)."""
    return Question(tuple(contexts), (rest.strip(),) * len(contexts), gold)


def _labelled(word: Callable[..., Question], stem: str) -> Callable[[Record], Question]:
    """The hub's ARC and OpenBookQA: choices as {text: [...], label: [...]}."""

    def make(record: Record) -> Question:
        choices = record["choices"]
        return word(record[stem], choices["text"], list(choices["label"]).index(record["answerKey"].strip()))

    return make


def _nested(word: Callable[..., Question]) -> Callable[[Record], Question]:
    """The authors' ARC and OpenBookQA: question as {stem, choices: [{text, label}, ...]}."""

    def make(record: Record) -> Question:
        choices = record["question"]["choices"]
        gold = [choice["label"] for choice in choices].index(record["answerKey"].strip())
        return word(record["question"]["stem"], [choice["text"] for choice in choices], gold)

    return make


def _instructed(word: Callable[..., Question]) -> Callable[[Record], Question]:
    """llm-adapters: question and numbered choices inside one instruction."""

    def make(record: Record) -> Question:
        form = r"[^:]*: (.*?)\s*\n\n(?:Answer|Option)1: (.*?)\s*Answer format:"
        question, choices = re.findall(form, record["instruction"], re.S)[0]
        texts = re.split(r"\s(?:Answer|Option)\d: ", choices)
        return word(question, texts, int(re.sub(r"\D", "", record["answer"])) - 1)

    return make


def _stem(question: str, choices: Any, gold: int) -> Question:
    return Question((question,), tuple(items(choices)), gold)


def _sentence(sentence: str, options: list[str], gold: int) -> Question:
    return _blank({"sentence": sentence, "option1": options[0], "option2": options[1], "answer": gold + 1})


def _school(word: Callable[..., Question], stem: str, foundry: Callable[[Record], Question]) -> tuple[Layout, ...]:
    return (
        Layout((stem, "choices", "answerKey"), _labelled(word, stem)),
        Layout(("question", "answerKey"), _nested(word)),
        Layout(("query", "choices", "gold"), foundry),
        Layout(("instruction", "answer"), _instructed(word)),
    )


LAMBADA = (Layout(("context", "continuation"), _continued), Layout(("text",), _last_word))
PIQA = (Layout(("goal", "sol1", "sol2", "label"), _goal), Layout(("query", "choices", "gold"), _foundry))
HELLASWAG = (
    Layout(("activity_label", "ctx_a", "ctx_b", "endings", "label"), _endings),
    Layout(("query", "choices", "gold"), _plain),
)
WINOGRANDE = (
    Layout(("sentence", "option1", "option2", "answer"), _blank),
    Layout(("context_options", "continuation", "gold"), _filled),
    Layout(("instruction", "answer"), _instructed(_sentence)),
)
ARC = _school(asked, "question", _foundry)
OPENBOOKQA = _school(_stem, "question_stem", _plain)
