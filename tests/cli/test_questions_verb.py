"""`anchorlm eval` with suites that ask questions: rows, files, tables, and mistakes found before a model is loaded."""

import json

import pytest

from anchorlm.convert import load
from questions import write_all


def test_questions_side_by_side(call, folder, tmp_path):
    data = write_all(tmp_path / "data")
    given = ["--set", f"commonsense.data={data}", "commonsense.tasks=[piqa, lambada]", f"mmlu.data={data / 'mmlu'}"]
    line = ["eval", folder, "--suite", "commonsense,mmlu", *given, "--vs", "teacher", "-o", tmp_path / "run"]
    code, text, error = call(*line, "--json")
    assert code == 0, error
    found = json.loads(text)
    assert found["commonsense"] == json.loads((tmp_path / "run" / "commonsense.json").read_text())
    ours, theirs = found["mmlu"]["rows"]
    assert ours["truncated"] == 0 and theirs["truncated"] == 5  # the window reads on, full attention has 512 positions
    assert theirs["first_minus_this"]["n"] == 5 and set(theirs["first_minus_this"]["tasks"]) == set(ours["tasks"])
    assert list(found["commonsense"]["rows"][0]["tasks"]) == ["piqa", "lambada"]
    assert found["commonsense"]["options"]["own"]["tasks"] == ["piqa", "lambada"]
    code, text, _ = call(*line)
    assert code == 0 and "commonsense, seed 0" in text and "arc_challenge norm" in text and "paired: " in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--suite", "commonsens"), "did you mean 'commonsense'"),
        (("--suite", "commonsense"), "commonsense.data is not given"),
        (("--suite", "commonsense", "--set", "commonsense.data={data}/none"), "none does not exist"),
        (("--suite", "mmlu", "--set", "mmlu.data={data}/piqa"), "hf download cais/mmlu"),
        (("--suite", "commonsense", "--set", "commonsense.tasks=[]"), "commonsense.tasks is []; give names out of"),
        (("--suite", "mmlu", "--set", "mmlu.subjects=[]"), "mmlu.subjects names nothing; give names"),
        (("--suite", "mmlu-cloze", "--set", "mmlu-cloze.subjects="), "subjects is None; give text or"),
        (("--suite", "ruler", "--set", "ruler.tasks=[]"), "ruler.tasks is []; give names out of"),
        (
            ("--suite", "commonsense", "--set", "commonsense.data={data}", "--set", "commonsense.tasks=[pika]"),
            "did you mean 'piqa'",
        ),
        (("--suite", "commonsense", "--set", "commonsense.data.piqa={data}/arc/ARC-Easy"), "has none of valid.jsonl"),
        (
            (
                "--suite",
                "commonsense",
                "--set",
                "commonsense.data.piqa={data}/arc/ARC-Easy/test-00000-of-00001.parquet",
            ),
            "has no field 'query'",
        ),
        (("--suite", "mmlu", "--set", "mmlu.data={data}", "--data", "{data}"), "--data is read by no suite of mmlu"),
    ],
)
def test_a_mistake_is_found_before_a_model_is_loaded(call, folder, tmp_path, monkeypatch, arguments, line):
    data = write_all(tmp_path / "data")
    monkeypatch.setattr(load, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    code, text, error = call("eval", folder, *[argument.format(data=data) for argument in arguments])
    assert code == 2 and text == "" and error.startswith("error: ") and error.count("\n") == 1 and line in error, error
