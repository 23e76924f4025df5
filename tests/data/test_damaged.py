"""Whatever stands in a record of a question file, the reader takes it or says in one line where it is wrong."""

import copy
import json

import pytest

from anchorlm.core import UserError
from anchorlm.data.comprehension import read_completions, read_hotpotqa, read_squad
from anchorlm.data.mmlu import read_mmlu
from anchorlm.data.questions import read_task
from questions import RECORDS, mmlu_records

SQUAD = {"title": "Ships", "paragraphs": [
    {"context": "The ship is red.", "qas": [{"question": "What colour?", "answers": [{"text": "red"}]}]},
    {"context": "The mast is tall.", "qas": [{"question": "What is tall?", "answers": [{"text": "mast"}]}]}]
}  # fmt: skip
FLAT = {"context": "It is red.", "question": "Colour?", "answers": {"text": ["red"], "answer_start": [6]}}
HOTPOT = {"question": "Q?", "answer": "yes", "supporting_facts": [["A", 0], ["B", 0]],
          "context": [["A", ["a1.", " a2."]], ["B", ["b."]], ["C", ["c."]]]}  # fmt: skip
COLUMNS = {"question": "Q?", "answer": "yes", "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 0]},
           "context": {"title": ["A", "B"], "sentences": [["a1."], ["b."]]}}  # fmt: skip
FDA = {"text": "Name: Fred. Age: 7. Name:", "value": "Fred", "context": "Name: Fred."}
READERS = {
    "squad": (SQUAD, read_squad), "squad of the hub": (FLAT, read_squad), "hotpotqa": (HOTPOT, read_hotpotqa),
    "hotpotqa of the hub": (COLUMNS, read_hotpotqa), "fda": (FDA, read_completions),
    "squad as recall": (SQUAD, read_completions),
    "mmlu": (mmlu_records("anatomy", "test", 1)[0], lambda path: read_mmlu(str(path), shots=0)),
    **{task: (records[0], lambda path, task=task: read_task(task, str(path))) for task, records in RECORDS.items()},
}  # fmt: skip
WRONG = (None, 5, 0.5, True, "", "x", [], [5], ["x"], [None], {}, {"x": 1})


def places(value, path=()):
    """The paths of every value inside, the outermost first."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def spoilt(record, path, value):
    if not path:
        return value
    changed = copy.deepcopy(record)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", READERS)
def test_a_record_with_something_else_inside_is_read_or_named(tmp_path, name):
    record, read = READERS[name]
    path, refused = tmp_path / "records.jsonl", 0
    for where in places(record):
        for value in WRONG:
            path.write_text(json.dumps(spoilt(record, where, value)) + "\n")
            try:
                found = read(path)
            except UserError as error:
                refused += 1
                assert str(path) in str(error) and "\n" not in str(error)
            else:
                assert found and repr(found)
    assert refused


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet", "x.txt", "x.json"])
def test_mmlu_takes_no_file_for_its_own_examples(tmp_path, name):
    """A single file has no dev file beside it; it must not stand in for one."""
    path = tmp_path / name
    if name.endswith(".csv"):
        path.write_text("q,a,b,c,d,A\n" * 9)
    else:
        path.write_text(json.dumps(mmlu_records("anatomy", "test", 9)))
    with pytest.raises(UserError, match=r"x\."):
        read_mmlu(str(path), shots=5)


def test_an_empty_text_of_questions_is_empty(tmp_path):
    (tmp_path / "hellaswag_val.txt").write_text("")
    with pytest.raises(UserError, match=r"hellaswag_val\.txt is empty"):
        read_task("hellaswag", str(tmp_path / "hellaswag_val.txt"))
