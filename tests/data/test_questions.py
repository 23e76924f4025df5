"""Question files: every layout gives the wording of lm-evaluation-harness, and a wrong file is named with its field."""

import csv
import os

import pytest

from anchorlm.convert import hub
from anchorlm.core import UserError
from anchorlm.data.layouts import Question
from anchorlm.data.mmlu import read_mmlu
from anchorlm.data.questions import TASKS, places, read_task
from questions import RECORDS, SUBJECTS, material, mmlu_records, sets_of, write_all, write_records

ARC = Question(("Question: What melts ice?\nAnswer:",), ("heat", "cold", "salted fish"), 0)
WORDED = {
    "lambada": Question(("The boats went out at dawn, and by noon the harbour was empty of",), ("boats",), 0),
    "piqa": Question(("Question: dry a wet coat\nAnswer:",), ("hang it near a stove ", "fold it into a drawer"), 0),
    "hellaswag": Question(
        ("Rowing: A man sits in a boat. The man",), ("takes the oars.", "sings. a map.", "paints it.", "is a boat."), 0
    ),
    "winogrande": Question(
        ("The cup fell off the shelf because the cup", "The cup fell off the shelf because the shelf"),
        ("was loose.", "was loose."),
        1,
    ),
    "arc_easy": ARC,
    "openbookqa": Question(("A plant needs",), ("light", "music"), 0),
}
OTHERS = [
    ("lambada", {"context": WORDED["lambada"].contexts[0], "continuation": "boats"}),
    ("piqa", {"query": "Question: dry a wet coat\n", "choices": list(WORDED["piqa"].choices), "gold": 0}),
    ("hellaswag", {"query": WORDED["hellaswag"].contexts[0], "choices": list(WORDED["hellaswag"].choices), "gold": 0}),
    (
        "winogrande",
        {"context_options": list(WORDED["winogrande"].contexts), "continuation": "was loose.", "gold": 1},
    ),
    (
        "winogrande",
        {
            "instruction": "Please choose the correct answer to fill in the blank to complete the given sentence: "
            "The cup fell off the shelf because _ was loose.\n\nOption1: the cup Option2: the shelf "
            "Answer format: option1/option2",
            "answer": "option2",
        },
    ),
    ("arc_easy", {"query": "Question: What melts ice?", "choices": list(ARC.choices), "gold": 0}),
    (
        "arc_easy",
        {
            "question": {
                "stem": "What melts ice?",
                "choices": [{"text": text, "label": label} for text, label in zip(ARC.choices, "ABC", strict=True)],
            },
            "answerKey": "A",
        },
    ),
    (
        "arc_easy",
        {
            "instruction": "Please choose the correct answer to the question: What melts ice?\n\nAnswer1: heat "
            "Answer2: cold Answer3: salted fish\n\nAnswer format: answer1/answer2/answer3",
            "answer": "answer1",
        },
    ),
    ("openbookqa", {"query": "A plant needs", "choices": ["light", "music"], "gold": 0}),
]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("task", WORDED)
def test_the_hubs_layout(task, kind, tmp_path):
    file = write_records(tmp_path / f"x.{kind}", RECORDS[task])
    assert read_task(task, str(file)).questions[0] == WORDED[task]


@pytest.mark.parametrize("task, record", OTHERS)
def test_other_layouts_give_the_same_question(task, record, tmp_path):
    assert read_task(task, str(write_records(tmp_path / "x.jsonl", [record]))).questions == (WORDED[task],)


def test_pairs_put_a_space_before_each_choice():
    assert ARC.pairs()[1] == ("Question: What melts ice?\nAnswer:", " cold")
    assert [context[-9:] for context, _ in WORDED["winogrande"].pairs()] == ["e the cup", "the shelf"]


def test_a_folder_of_task_folders_is_enough(tmp_path):
    found = sets_of(write_all(tmp_path), "commonsense", "mmlu")
    assert {one.name: len(one.questions) for one in found["commonsense"]} == dict.fromkeys(TASKS, 2)
    assert {one.name: len(one.questions) for one in found["mmlu"]} == SUBJECTS
    assert found["commonsense"][0].hash != found["commonsense"][1].hash
    assert [len(one.questions) for one in sets_of(tmp_path, "mmlu", limit=1)["mmlu"]] == [1, 1]
    few = material("commonsense", str(tmp_path), tasks=["arc_easy", "piqa"])
    assert [one.name for one in few.items] == ["arc_easy", "piqa"]
    assert few.data["documents"] == 4 and few.data["hash"] != material("commonsense", str(tmp_path)).data["hash"]
    assert [one.name for one in material("mmlu", str(tmp_path), subjects="anatomy").items] == ["anatomy"]
    own = {"piqa": str(tmp_path / "piqa")}
    assert [one.name for one in material("commonsense", own).items] == ["piqa"]


def test_labels_beside_the_questions(tmp_path):
    bare = [{key: value for key, value in record.items() if key != "label"} for record in RECORDS["piqa"]]
    write_records(tmp_path / "piqa" / "valid.jsonl", bare)
    with pytest.raises(UserError, match=r"valid.jsonl:1 has no field 'label' \(it has: goal, sol1, sol2; known: goal"):
        read_task("piqa", str(tmp_path / "piqa"))
    (tmp_path / "piqa" / "valid-labels.lst").write_text("0\n1\n")
    assert [question.gold for question in read_task("piqa", str(tmp_path / "piqa")).questions] == [0, 1]
    (tmp_path / "piqa" / "valid-labels.lst").write_text("0\n")
    with pytest.raises(UserError, match="has 1 labels for the 2 records of valid.jsonl"):
        read_task("piqa", str(tmp_path / "piqa"))


def test_six_lines_a_question_in_several_parts(tmp_path):
    lines = [*WORDED["hellaswag"].contexts, "0", *WORDED["hellaswag"].choices]
    for part in (1, 2):
        (tmp_path / f"hellaswag_val.part{part}of2.txt").write_text("\n".join(lines) + "\n")
    found = read_task("hellaswag", str(tmp_path))
    assert found.questions == (WORDED["hellaswag"],) * 2 and len(found.files) == 2
    (tmp_path / "hellaswag_val.part1of2.txt").write_text("\n".join(lines[:5]))
    with pytest.raises(UserError, match="has 5 lines; six a question are needed"):
        read_task("hellaswag", str(tmp_path))


def test_mmlu_worded_with_letters_and_as_cloze(tmp_path):
    folder = str(write_all(tmp_path) / "mmlu")
    anatomy = read_mmlu(folder, shots=1)[0]
    assert anatomy.questions[0] == Question(
        (
            "The following are multiple choice questions (with answers) about anatomy.\n\n"
            "dev question 0 of anatomy?\nA. one 0\nB. two or more\nC. three\nD. 0 and four\nAnswer: D\n\n"
            "test question 0 of anatomy?\nA. one 0\nB. two or more\nC. three\nD. 0 and four\nAnswer:",
        ),
        ("A", "B", "C", "D"),
        3,
    )
    cloze = read_mmlu(folder, "cloze", 1, ["high_school_physics"])[0].questions[0]
    assert cloze.contexts[0] == (
        "The following are questions (with answers) about high school physics.\n\n"
        "Question: dev question 0 of high_school_physics?\nAnswer: 0 and four\n\n"
        "Question: test question 0 of high_school_physics?\nAnswer:"
    )
    assert cloze.choices == ("one 0", "two or more", "three", "0 and four")
    assert len(read_mmlu(folder, shots=5)[0].questions[0].contexts[0].split("\n\n")) == 7
    with pytest.raises(UserError, match="anatomy has 5 dev questions; 6 shots were asked for"):
        read_mmlu(folder, shots=6)
    with pytest.raises(UserError, match="subject 'anatomi' is unknown; did you mean 'anatomy'"):
        read_mmlu(folder, subjects=["anatomi"])


@pytest.mark.parametrize("header", [True, False])
def test_mmlu_tables_with_and_without_a_header(header, tmp_path):
    for split in ("test", "dev"):
        (tmp_path / split).mkdir()
        with open(tmp_path / split / f"anatomy_{split}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            if header:
                writer.writerow(["question", "choice0", "choice1", "choice2", "choice3", "answer"])
            for record in mmlu_records("anatomy", split, 5):
                answer = record["answer"] if header else "ABCD"[record["answer"]]
                writer.writerow([record["question"] + "\nsecond line", *record["choices"], answer])
    found = read_mmlu(str(tmp_path))
    assert [one.name for one in found] == ["anatomy"]
    assert [question.gold for question in found[0].questions] == [3, 0, 1, 2, 3]
    assert "second line\nA. one 0" in found[0].questions[0].contexts[0]
    (tmp_path / "dev" / "anatomy_dev.csv").unlink()
    with pytest.raises(UserError, match="anatomy_dev.csv does not exist.*or set shots=0"):
        read_mmlu(str(tmp_path))
    assert len(read_mmlu(str(tmp_path), shots=0)) == 1


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"goal": "a", "sol1": "b", "label": 0}, "x.jsonl:1 has no field 'sol2'"),
        ({"goal": "a", "sol1": "b", "sol2": "c", "label": 2}, "the answer is number 2 of 2 choices"),
        ({"goal": "a", "sol1": "b", "sol2": "c", "label": "x"}, "but not their form"),
        ({"query": "a", "choices": None, "gold": 0}, "but not their form"),
        (["a"], "has no field 'goal'"),
    ],
)
def test_another_layout_is_named(record, line, tmp_path):
    with pytest.raises(UserError, match=line):
        read_task("piqa", str(write_records(tmp_path / "x.jsonl", [record])))


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("question,choice0,choice1,choice2,answer\na,b,c,d,0\n", "has no field 'choice3'"),
        ("a,b,c,d,e,F\n", "answer 'F' of 4 choices"),
        ("a,b,c,d,e,AB\n", "answer 'AB' of 4 choices"),
    ],
)
def test_a_damaged_table_is_named(row, line, tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "anatomy_test.csv").write_text(row)
    with pytest.raises(UserError, match=f"anatomy_test.csv:1.*{line}"):
        read_mmlu(str(tmp_path), shots=0)


def test_missing_data_names_what_brings_it(tmp_path):
    write_all(tmp_path / "all")
    (tmp_path / "all" / "piqa" / "plain_text" / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(UserError, match="piqa has none of .*; `hf download baber/piqa --repo-type dataset --local-dir"):
        material("commonsense", str(tmp_path / "all"))
    with pytest.raises(UserError, match=rf"{tmp_path}/mmlu does not exist; `hf download cais/mmlu"):
        material("mmlu", str(tmp_path))
    with pytest.raises(UserError, match="mmlu.data is not given; give a folder of task folders .*, or hub"):
        material("mmlu", "")
    with pytest.raises(UserError, match="mmlu-cloze.data: .*no_such does not exist"):
        material("mmlu-cloze", str(tmp_path / "no_such"))


@pytest.mark.parametrize(
    ("suite", "own", "line"),
    [
        ("commonsense", {"tasks": ["hellaswagg"]}, "'hellaswagg' is unknown; did you mean 'hellaswag'"),
        ("commonsense", {"data": {"pika": "x"}}, "'pika' is unknown; did you mean 'piqa'"),
        ("commonsense", {"task": ["piqa"]}, "'commonsense.task' is unknown; did you mean 'tasks'"),
        ("commonsense", {"tasks": 3}, "commonsense.tasks is 3"),
        ("mmlu", {"subjects": 3}, "mmlu.subjects is 3"),
        ("mmlu", {"subjects": ["anatomi"]}, "subject 'anatomi' is unknown; did you mean 'anatomy'"),
        ("mmlu", {"shots": -1}, "mmlu.shots is -1"),
        ("mmlu", {"shots": 6}, "has 5 dev questions; 6 shots were asked for"),
    ],
)
def test_options_are_checked(suite, own, line, tmp_path):
    with pytest.raises(UserError, match=line):
        material(suite, **{"folder": str(write_all(tmp_path)), **own})


def test_where_each_task_lies(tmp_path):
    files = {name: TASKS[name].files for name in ("piqa", "arc_easy")}
    (tmp_path / "arc").mkdir()
    (tmp_path / "own.jsonl").write_text("")
    assert places("d", tmp_path, files) == {"piqa": str(tmp_path / "piqa"), "arc_easy": str(tmp_path / "arc")}
    assert places("d", {"piqa": "a", "arc_easy": "hub"}, files) == {"piqa": "a", "arc_easy": "hub"}
    assert places("d", "hub", files) == {"piqa": "hub", "arc_easy": "hub"}
    assert places("d", tmp_path / "arc", {"arc_easy": files["arc_easy"]}) == {"arc_easy": str(tmp_path / "arc")}
    with pytest.raises(UserError, match="d names no place for the task arc_easy; give d.arc_easy=PATH or =hub"):
        places("d", {"piqa": "a"}, files)
    with pytest.raises(UserError, match="task 'pika' is not among those asked for; did you mean 'piqa'"):
        places("d", {"pika": "a"}, files)
    with pytest.raises(UserError, match="own.jsonl is a file; name its task, as in d.piqa="):
        places("d", tmp_path / "own.jsonl", files)


def test_the_hub_is_asked_for_the_files_of_the_task(tmp_path, monkeypatch):
    asked = {}

    def download(repository, **options):
        asked[repository] = options
        write_all(tmp_path)
        return str(tmp_path / "piqa")

    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", download)
    assert len(read_task("piqa", "hub").questions) == 2
    assert asked["baber/piqa"]["repo_type"] == "dataset" and asked["baber/piqa"]["local_files_only"] is True

    def refuse(*_, **__):
        raise OSError("nothing here")

    monkeypatch.setattr(hub.huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(UserError, match="baber/piqa is neither in the hub cache .*forbids the network.*hf download"):
        read_task("piqa", "hub")


SIZES = {"lambada": 5153, "piqa": 1838, "hellaswag": 10042, "winogrande": 1267, "arc_easy": 2376,
         "arc_challenge": 1172, "openbookqa": 500}  # fmt: skip


@pytest.mark.data
@pytest.mark.skipif("ANCHORLM_TEST_DATA" not in os.environ, reason="ANCHORLM_TEST_DATA names no folder of task folders")
def test_the_real_sets_are_whole():
    found = sets_of(os.environ["ANCHORLM_TEST_DATA"], "commonsense", "mmlu")
    assert {one.name: len(one.questions) for one in found["commonsense"]} == SIZES
    assert len(found["mmlu"]) == 57 and sum(len(one.questions) for one in found["mmlu"]) == 14042
