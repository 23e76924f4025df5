"""Fixed questions about the packaged book's beginning, asked long after it and beside the sentence that answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from .ask import ReadText
from .text import Options, generate_text

ANSWER_TOKENS = 12


@dataclass(frozen=True)
class Question:
    """What is asked, the words that begin an answer (a small model goes on better than it answers), the name that
    completes it, and the book's own sentence that says so, white space and capitals aside.
    """

    question: str
    lead: str
    expected: str
    sentence: str

    @property
    def prompt(self) -> str:
        return f"Question: {self.question} Answer: {self.lead}"


QUESTIONS = (
    Question(
        "What is the name of the suburb on the sunset side of London?",
        "The suburb is",
        "Saffron Park",
        "The suburb of Saffron Park lay on the sunset side of London, as red and ragged as a cloud of sunset.",
    ),
    Question(
        "What is the name of the sister of Gregory?",
        "His sister is",
        "Rosamond",
        "The third party of the group, Gregory's sister Rosamond, who had her brother's braids of red hair, but a "
        "kindlier face underneath them, laughed",
    ),
)


def answers(done: ReadText, asked: Question, options: Options) -> dict[str, Any]:
    """One row: both answers as they are, the expected one, and whether it stands in them."""
    after = done.ask(asked.prompt, options).text
    beside = generate_text(
        done.model, done.tokenizer, asked.prompt, asked.sentence, replace(options, raw=done.options.raw, limit=None)
    ).text
    row = {"question": asked.question, "lead": asked.lead, "expected": asked.expected, "sentence": asked.sentence}
    row |= {"after the book": after.strip(), "beside the sentence": beside.strip()}
    return row | {"right": {name: holds(text, asked.expected) for name, text in list(row.items())[4:]}}


def holds(written: str, expected: str) -> bool:
    """The expected words stand in the text, whole, whatever their case."""
    return re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", written, re.IGNORECASE) is not None
