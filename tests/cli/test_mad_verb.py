"""`anchorlm mad` from the packaged table to the page."""

import json

import pytest

SMALL = ["--set", "model.hidden=8", "--set", "model.layers=4", "--set", "model.heads=2", "--set", "model.kv_heads=2",
         "--set", "training.steps=1", "--set", "training.batch=2", "--set", "test=2"]  # fmt: skip
CHOSEN = ["--models", "transformer,anchor-f", "--tasks", "compression", "memorisation", "--seeds", "1"]


def test_table_and_json(call, tmp_path):
    code, text, error = call("mad", *SMALL, *CHOSEN, "-o", tmp_path / "run")
    assert code == 0, error
    assert "| anchor-f |" in text and "compression, anchor-f, seed 0:" in error
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["mad.html", "mad.json", "mad.md", "parts"]
    code, text, error = call("mad", *SMALL, *CHOSEN, "-o", tmp_path / "run", "--json")
    found = json.loads(text)
    assert (
        code == 0
        and error == ""
        and found["settings"]["seeds"] == 1
        and list(found["tasks"])
        == [
            "compression",
            "memorisation",
        ]
    )


@pytest.mark.parametrize("arguments, expected", [
    (["--models", "transformr"], "model 'transformr' is unknown; did you mean 'transformer'?"),
    (["--tasks", "compresion"], "task 'compresion' is unknown; did you mean 'compression'?"),
    (["--tasks", "compression", "--set", "tasks.compression.length=4"], "length is 4; at least 16"),
    (["--seeds", "0"], "--seeds"),
    (["--table", "madd"], "did you mean 'mad'?"),
    (["--table", "smollm2"], "tasks must name tasks"),
    (["--device", "gpu"], "device 'gpu'"),
])  # fmt: skip
def test_a_mistake_is_one_line(call, tmp_path, arguments, expected):
    code, _, error = call("mad", *SMALL, "--models", "transformer", "anchor-f", *arguments, "-o", tmp_path / "run")
    assert code == 2 and expected in error and len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_results_says_where_the_table_belongs(call):
    code, _, error = call("results", "mad", "--data", "x.txt")
    assert code == 2 and "anchorlm mad" in error
