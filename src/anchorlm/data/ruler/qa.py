"""RULER's question answering tasks (arXiv 2404.06654, section 3.4): documents that answer among others that do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorlm.data.comprehension import Question
from anchorlm.data.ruler.fit import Draft, Variant

PUBLISHED = 32  # tokens of an answer
PROMPT = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: {question} Answer:"
)


class Library:
    """The questions of one file, and every document in it: documents near a question come before those of others."""

    def __init__(self, questions: Sequence[Question]):
        self.questions = list(questions)
        documents = (text for question in questions for text in (*question.gold, *question.near))
        self.documents = list(dict.fromkeys(documents))

    def variant(self, index: int) -> Variant:
        """The prompt of one question; units are documents beside those that answer it."""
        question = self.questions[index]
        own = {*question.gold, *question.near}
        others = [text for text in self.documents if text not in own]

        def write(units: int, rng: np.random.Generator) -> Draft:
            near = [question.near[int(i)] for i in rng.permutation(len(question.near))[:units]]
            far = [others[int(i)] for i in rng.permutation(len(others))[: units - len(near)]]
            chosen = [*question.gold, *near, *far]
            shuffled = [chosen[int(i)] for i in rng.permutation(len(chosen))]
            context = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(shuffled, start=1))
            text = PROMPT.format(context=context, question=question.question)
            says = max(question.answers, key=len)
            return Draft(text, question.answers, question.gold, says, {"documents": len(chosen), "question": index})

        return Variant(write, least=0, most=len(self.documents) - len(question.gold))
