"""Questions about documents from files of their public layouts: SQuAD, HotpotQA, and documents to be completed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorlm.core import UserError
from anchorlm.data.sources import in_form, items, read_records, words

SQUAD = "curl -LO https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json"
HOTPOTQA = "curl -LO http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json"


@dataclass(frozen=True)
class Question:
    """A question, every answer that counts, the documents that answer it, and documents near them that do not."""

    question: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    near: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A text that ends where `answers` must follow. document: the part of it that holds them, where it is known."""

    text: str
    answers: tuple[str, ...]
    document: str = ""


def read_squad(path: str | Path) -> list[Question]:
    """Answerable questions of a SQuAD file (1.1 or 2.0), or of records with context, question and answers.

    Raises UserError for a missing or damaged file or one of another layout.
    """
    found: list[Question] = []
    for where, record in read_records(Path(path)):
        article = _fields(record, path, where)
        with in_form(f"data {path}:{where} is not SQuAD inside"):
            found += _article(article) if "paragraphs" in article else _flat(article, path, where)
    return _some(found, path)


def _article(article: dict[str, Any]) -> Iterator[Question]:
    paragraphs = [words(paragraph["context"]) for paragraph in items(article["paragraphs"])]
    for paragraph in article["paragraphs"]:
        near = tuple(text for text in paragraphs if text != paragraph["context"])
        for asked in items(paragraph["qas"]):
            if not asked.get("is_impossible") and asked.get("answers"):
                answers = tuple(dict.fromkeys(words(answer["text"]) for answer in items(asked["answers"])))
                yield Question(words(asked["question"]), answers, (paragraph["context"],), near)


def _flat(record: dict[str, Any], path: Any, where: int) -> Iterator[Question]:
    if not isinstance(record.get("context"), str) or not isinstance(record.get("question"), str):
        raise UserError(f"data {path}:{where} is not SQuAD: no 'paragraphs', and no 'context' with 'question'")
    if answers := _answers(record):
        yield Question(record["question"], answers, (record["context"],))


def _answers(record: dict[str, Any]) -> tuple[str, ...]:
    """The texts under answers, answer or value, in any of their usual shapes; each once."""
    given = next((record[name] for name in ("answers", "answer", "value") if record.get(name)), ())
    if isinstance(given, dict):
        given = given.get("text", ())
    given = [given] if isinstance(given, str | int | float) else items(given)
    texts = [words(text["text"]) if isinstance(text, dict) else str(text) for text in given]
    return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


def read_hotpotqa(path: str | Path) -> list[Question]:
    """Questions of a HotpotQA distractor file, as published or as on the hub. Raises UserError as `read_squad` does."""
    found = []
    for where, record in read_records(Path(path)):
        fields = _fields(record, path, where)
        with in_form(f"data {path}:{where} is not HotpotQA: question, answer, supporting_facts, context"):
            titles = _columns(fields["supporting_facts"], "title", "sent_id")[0]
            documents = list(zip(*_columns(fields["context"], "title", "sentences"), strict=True))
            texts = {words(title): f"{title}\n{''.join(items(sentences))}" for title, sentences in documents}
            gold = tuple(dict.fromkeys(texts[title] for title in titles if title in texts))
            near = tuple(text for text in texts.values() if text not in gold)
            found.append(Question(words(fields["question"]), (str(fields["answer"]),), gold, near))
    return _some(found, path)


def _columns(table: Any, *names: str) -> list[list[Any]]:
    """Columns of a table that is a mapping of columns or a list of rows."""
    if isinstance(table, dict):
        return [items(table[name]) for name in names]
    return [list(column) for column in zip(*items(table), strict=True)]


def read_completions(path: str | Path) -> list[Completion]:
    """Records with `text`, which ends where `value` must follow: FDA, SWDE and SQuAD as rewritten for completion.

    A SQuAD file, or records with context and question, become "... Question: ... Answer:". Raises UserError as
    `read_squad` does.
    """
    records = [(where, _fields(record, path, where)) for where, record in read_records(Path(path))]
    if not any(isinstance(record.get("text"), str) for _, record in records):
        return [_asked(question) for question in read_squad(path)]
    return _some([_completion(record, path, where) for where, record in records], path)


def _completion(record: dict[str, Any], path: Any, where: int) -> Completion:
    with in_form(f"data {path}:{where} has no answer that can be read"):
        answers = _answers({"answers": record.get("value") or record.get("answers")})
    if not isinstance(record.get("text"), str) or not answers:
        raise UserError(f"data {path}:{where} has no 'text' with the 'value' that must follow it")
    text, context = record["text"].rstrip(), record.get("context")
    return Completion(text, answers, context if isinstance(context, str) and text.startswith(context) else "")


def _asked(question: Question) -> Completion:
    document = question.gold[0]
    return Completion(f"{document}\nQuestion: {question.question}\nAnswer:", question.answers, document)


def _fields(record: object, path: Any, where: int) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise UserError(f"data {path}:{where} is {json.dumps(record)[:40]}; a record with fields is needed")
    return record


def _some(found: list[Any], path: Any) -> list[Any]:
    if not found:
        raise UserError(f"data {path} holds no question with an answer")
    return found
