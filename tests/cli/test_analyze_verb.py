"""`anchorlm analyze` from a folder to JSON and tables, and `anchorlm report` from JSON to one page."""

import json
import re

import pytest

from anchorlm.convert.save import save
from hybrids import make
from small import char_tokenizer

WHAT = ["knockout", "similarity", "readmaps", "ablation", "cost"]
SMALL = ["--context", 40, "--documents", 2, "--set", "recall=0"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The cat sat. The cat ran. " * 16)
    return path


def test_every_analysis_and_its_page(call, folder, text, tmp_path):
    run = tmp_path / "run"
    code, shown, error = call("analyze", folder, "--what", ",".join(WHAT), "--data", text, "-o", run, *SMALL)
    assert code == 0, error
    for expected in ("memory knocked out", "debiased CKA", "share of", "all slots off", "hybrid to full layers"):
        assert expected in shown
    stored = {name: json.loads((run / f"{name}.json").read_text()) for name in WHAT}
    for name, result in stored.items():
        assert result["kind"] == name and result["plan"]["slots"] and result["seed"] == 0
        assert result["environment"]["packages"]["torch"] and result["options"]["context"] == 40
    code, shown, error = call("report", run, "-o", tmp_path / "page.html", "--title", "Tiny")
    assert code == 0 and shown.startswith("wrote "), error
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?://|<script|<link|@import|src=", page)
    for heading in ("Branches knocked out", "Read-outs compared", "Read maps", "Slots left out", "Cost and coverage"):
        assert f"<h2>{heading}: " in page
    assert page.count("<svg") >= 10 and "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.S)


def test_cost_reads_no_weight(call, folder):
    (folder / "memory.safetensors").write_bytes(b"no tensors here")
    code, shown, error = call("analyze", folder, "--what", "cost", "--json")
    assert code == 0, error
    found = json.loads(shown)["cost"]
    assert found["digest"] is None and found["ratios"][0]["states"]["private"] == 2


MISTAKES = [
    (("--what", "knockot", "--data", "{text}"), "did you mean 'knockout'?"),
    (("--data", "{text}"), "no analysis named; allowed: ablation, choosers, cost, knockout, readmaps, similarity"),
    (("--what", "similarity"), "similarity needs --data"),
    (("--what", "similarity", "--data", "{text}", "--context", "300"), "context 300 needs 600, as 2 pieces of 300"),
    (("--what", "knockout", "--data", "{text}", "--context", "9"), "needs at least 10 tokens"),
    (("--what", "knockout", "--data", "{text}", "--layers", "7"), "the model has layers 0 to 3"),
    (("--what", "ablation", "--data", "{text}.none"), "text.txt.none"),
    (("--what", "ablation", "--data", "{text}", "--set", "window=x"), "analyze option window = 'x'"),
    (("--what", "ablation", "--data", "{text}", "--set", "context=5"), "--context"),
    (("--what", "cost", "--results", "{text}"), "is not readable JSON"),
    (("--what", "similarity", "--data", "{text}", "--set", "recall=9"), "recall has no meaning for similarity"),
    (("--what", "cost", "--documents", "4"), "documents has no meaning for cost"),
    (("--what", "readmaps", "--context", "64"), "context has no meaning for readmaps"),
    (("--what", "cost", "--set", "control=false"), "control has no meaning for cost"),
    (("--what", "ablation", "--data", "{text}", "--context", "40", "--set", "kept=[4]"), "has no slot of exact tokens"),
    (
        ("--what", "similarity,knockout", "--data", "{text}", "--context", "64"),
        "a fact in each of 4 ranges of distance, the first up to 8, has no room with its question",
    ),
    (("--what", "cost", "--set", "contxt=4"), "did you mean 'context'"),
    (("--what", "cost", "--data", "{text}"), "leave it out"),
]


@pytest.mark.parametrize("arguments, line", MISTAKES, ids=[line for _, line in MISTAKES])
def test_a_mistake_is_told_before_a_weight_is_read(call, folder, text, monkeypatch, arguments, line):
    monkeypatch.setattr("anchorlm.convert.bases._read_weights", lambda *_, **__: pytest.fail("weights were read"))
    code, shown, error = call("analyze", folder, *[a.format(text=text) for a in arguments])
    assert code == 2 and shown == "" and error.count("\n") == 1 and line in error, error


@pytest.mark.parametrize("plan, what, line", [
    ("swa", "readmaps", "has no slot; readmaps needs one"),
    ("swa", "similarity", "has no slot; similarity needs one"),
    ("anchor", "readmaps", "has no read map: map is 'none' in slot head, tail"),
])  # fmt: skip
def test_a_model_without_what_is_looked_at(call, base_folder, text, tmp_path, plan, what, line):
    values = {"map": {"kind": "none"}} if plan == "anchor" else {}
    made = save(make(base_folder, plan, **values), tmp_path / "hybrid", char_tokenizer())
    code, _, error = call("analyze", made, "--what", what, "--data", text)
    assert code == 2 and line in error


def test_a_folder_keeps_the_analyses_of_one_run(call, base_folder, folder, text, tmp_path):
    run = tmp_path / "run"
    given = ["--data", text, "--context", 40, "--documents", 2, "-o", run]
    assert call("analyze", folder, "--what", "similarity", *given)[0] == 0
    assert call("analyze", folder, "--what", "ablation,similarity,cost", *given)[0] == 0, "more of the same run"
    kept = {path.name: path.read_bytes() for path in run.glob("*.json")}
    for change in (["--context", 50], ["--seed", 3], ["--set", "window=9"]):
        code, _, error = call("analyze", folder, "--what", "similarity", *given, *change)
        assert code == 2 and "similarity.json holds another run: " in error and "name another folder" in error
    save(make(base_folder, "anchor", shake=False), folder, char_tokenizer(), overwrite=True)
    code, _, error = call("analyze", folder, "--what", "similarity", *given)
    assert code == 2 and "its model has changed" in error
    assert {path.name: path.read_bytes() for path in run.glob("*.json")} == kept


@pytest.mark.parametrize("spoil", ["rows", "table", "texts", "state_bytes"])
def test_results_with_missing_parts_are_named(call, folder, tmp_path, spoil):
    measured = {"test": {"all": {"ppl": 9.0, "interval": None}, "cross_window": None}}
    row = {"name": "swa", "state_bytes": {"64": 1000}, "needles": {}, "texts": measured}
    table = {"kind": "results", "table": {"title": "t", "context": 64}, "texts": {"test": {}}, "rows": [row]}
    for value in (None, 5, [5], {}, [{}]):
        bad = table | {spoil: value} if spoil in table else table | {"rows": [row | {spoil: value}]}
        (tmp_path / "results.json").write_text(json.dumps(bad))
        code, _, error = call("analyze", folder, "--what", "cost", "--results", tmp_path / "results.json")
        assert code == 0 or (code == 2 and "results.json is" in error and error.count("\n") == 1), error


def test_a_report_needs_a_run(call, tmp_path):
    code, _, error = call("report", tmp_path / "none", "-o", tmp_path / "page.html")
    assert code == 2 and "none does not exist" in error
    code, _, error = call("report", tmp_path, "-o", tmp_path)
    assert code == 2 and "is a folder" in error


def test_a_size_that_one_analysis_can_use_is_no_mistake_of_the_other(call, folder, text):
    """Choosers keep so many tokens; the ablation of a model without kept tokens has no such axis."""
    few = ["--set", "kept=[4]", "--set", "windows=[8]", "--set", "chunks=[8]", "--layers", 1]
    given = ["--data", text, "--context", 40, "--documents", 2, *few, "--json"]
    code, shown, error = call("analyze", folder, "--what", "choosers,ablation", *given)
    assert code == 0, error
    found = json.loads(shown)
    assert {row["kept"] for row in found["choosers"]["rows"]} == {0, 4}
    assert {row["sizes"]["kept"] for row in found["ablation"]["grid"]} == {None}
