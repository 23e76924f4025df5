"""Files of questions in their public layouts, and documents made longer than a window."""

import json

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.data.beyond import Prompts, contains
from anchorlm.data.comprehension import Completion, read_completions, read_hotpotqa, read_squad
from small import char_tokenizer

SQUAD = {
    "data": [
        {
            "title": "Ships",
            "paragraphs": [
                {"context": "The ship is red.", "qas": [
                    {"question": "What colour?", "answers": [{"text": "red"}, {"text": "red"}], "is_impossible": False},
                    {"question": "Who?", "answers": [], "is_impossible": True}]},
                {"context": "The mast is tall.", "qas": [{"question": "What is tall?", "answers": [{"text": "mast"}]}]},
            ],
        }
    ]
}  # fmt: skip
HUB = {"question": "Q?", "answer": "yes", "supporting_facts": {"title": ["A", "A", "B"], "sent_id": [0, 1, 0]},
       "context": {"title": ["A", "B", "C"], "sentences": [["a1.", " a2."], ["b."], ["c."]]}}  # fmt: skip
PUBLISHED = {"question": "Q?", "answer": "yes", "supporting_facts": [["A", 0], ["A", 1], ["B", 0]],
             "context": [["A", ["a1.", " a2."]], ["B", ["b."]], ["C", ["c."]]]}  # fmt: skip


def written(tmp_path, name, content):
    path = tmp_path / name
    lines = "\n".join(json.dumps(record) for record in content) if name.endswith("l") else json.dumps(content)
    path.write_text(lines)
    return path


def test_squad_leaves_unanswerable_questions_out(tmp_path):
    first, second = read_squad(written(tmp_path, "dev.json", SQUAD))
    assert first.question == "What colour?" and first.answers == ("red",)
    assert first.gold == ("The ship is red.",) and first.near == ("The mast is tall.",)
    assert second.answers == ("mast",)


def test_records_of_the_hub_are_squad_too(tmp_path):
    record = {"context": "It is red.", "question": "Colour?", "answers": {"text": ["red"], "answer_start": [6]}}
    assert read_squad(written(tmp_path, "a.jsonl", [record]))[0].answers == ("red",)


@pytest.mark.parametrize("layout", [HUB, PUBLISHED])
def test_hotpotqa_in_both_layouts(tmp_path, layout):
    (found,) = read_hotpotqa(written(tmp_path, "dev.json", [layout]))
    assert found.gold == ("A\na1. a2.", "B\nb.") and found.near == ("C\nc.",) and found.answers == ("yes",)


def test_completions_from_texts_and_from_squad(tmp_path):
    record = {"text": "Name: Fred. Age: 7. Name:", "value": "Fred"}
    assert read_completions(written(tmp_path, "fda.jsonl", [record])) == [Completion(record["text"], ("Fred",))]
    found = read_completions(written(tmp_path, "dev.json", SQUAD))[0]
    assert found.text == "The ship is red.\nQuestion: What colour?\nAnswer:" and found.document == "The ship is red."


@pytest.mark.parametrize(
    ("reader", "content", "message"),
    [
        (read_squad, [{"a": 1}], "a.json:1 is not SQuAD"),
        (read_squad, ["text"], 'a.json:1 is "text"; a record with fields'),
        (read_hotpotqa, [{"question": "Q?"}], "a.json:1 is not HotpotQA"),
        (read_completions, [{"text": "x"}], "a.json:1 has no 'text' with the 'value'"),
        (read_squad, [], "holds no question with an answer"),
    ],
)
def test_another_layout_is_named(tmp_path, reader, content, message):
    with pytest.raises(UserError, match=message):
        reader(written(tmp_path, "a.json", content))


DOCUMENTS = [f"Harbour {i} is kept by warden {i}{i}{i}. It has {i} piers." for i in range(30)]
ITEMS = [
    Completion(f"{text}\nQuestion: Who keeps harbour {i}?\nAnswer:", (f"warden {i}{i}{i}",), text)
    for i, text in enumerate(DOCUMENTS)
]
TOKENIZER = char_tokenizer()


@pytest.mark.parametrize("window", [None, 100, 300])
def test_documents_are_lengthened_and_answers_lie_beyond_the_window(window):
    made, passed = Prompts(TOKENIZER, 1000, window).make("squad", ITEMS, 8, seed=0)
    assert len(made) == 8 and not passed
    for item in made:
        text = TOKENIZER.decode(item.ids.tolist())
        assert 850 < len(text) + item.room <= 1000 and text.endswith("Answer:")
        assert text.count(item.answers[0]) == 1
        assert item.distance == len(text) - text.index(item.answers[0]) > (window or 0)
    assert len({item.distance for item in made}) > 4


def test_what_cannot_be_asked_is_counted():
    texts = [Completion("Age: 7. Name: Al. Age:", ("7",)), Completion("No answer here:", ("7",)),
             Completion("7" + "." * 900, ("7",)), Completion("7" + "." * 200, ("7",))]  # fmt: skip
    made, passed = Prompts(TOKENIZER, 500, 50).make("fda", texts, 10, seed=0)
    assert [item.distance for item in made] == [201]
    assert dict(passed) == {
        "with the answer within the window of 50 tokens": 1,
        "without the answer in the text": 1,
        "longer than 500 tokens": 1,
    }


def test_room_for_the_answer():
    long = Completion("x" * 100 + " " + "y" * 70 + " " * 5, ("y" * 70,))
    assert Prompts(TOKENIZER, 500, None).make("fda", [long], 1, 0)[0][0].room == 75
    with pytest.raises(UserError, match="recall fda/0: the answer takes 71 tokens, and recall.answer_tokens lets 48"):
        Prompts(TOKENIZER, 500, None, 48).make("fda", [long], 1, 0)


def test_score_is_containment():
    assert contains(" It was RED.", ("red",)) == 1.0 and contains("blue", ("red", "green")) == 0.0
    assert isinstance(np.mean([contains("a", ("a",))]), float)
