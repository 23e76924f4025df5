"""What only some tables have: rows set against each other, and RULER by task."""

import json
import re

import numpy as np
import pytest

from anchorlm.bench import measure
from anchorlm.convert.attach import convert
from anchorlm.core import UserError
from anchorlm.eval import EvalOptions
from anchorlm.eval.parts import Parts
from anchorlm.eval.suite import Job
from anchorlm.plan import ModelShape, Plan
from anchorlm.reach import Reach
from anchorlm.results import load_table, page, run_table, summary, table_names
from anchorlm.results.archive import Known
from anchorlm.results.measure import needles_in_window
from anchorlm.results.plans import row_plans
from anchorlm.results.records import Identity, Record
from anchorlm.results.speed import ROUNDS, run_speed
from anchorlm.results.table import read_table
from anchorlm.settings import load_recipe
from small import tiny_llama
from tiny_table import TABLE, by_name, job, silent

RULER = {"lengths": [504], "samples": 2, "tasks": ["niah_single_1", "vt"], "answer_tokens": 40}
ROWS = [
    {"name": "teacher", "plan": "full"},
    {"name": "swa", "plan": "swa"},
    {"name": "narrow", "plan": {"preset": "swa", "window": 4}, "against": "swa"},
]


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    data = {**TABLE, "base": str(home / "base"), "rows": ROWS, "gap": None, "lengths": [], "ruler": RULER}
    out = tmp_path_factory.mktemp("sections")
    run = job(home, out, train=())
    return read_table(data, "t"), run, run_table(read_table(data, "t"), run, say=silent)


def test_a_row_is_set_against_another_by_document(done):
    _, run, result = done
    rows = by_name(result)
    assert rows["swa"]["paired"] == {}
    parts = {name: row["texts"]["test"]["all"]["ppl"] for name, row in rows.items()}
    found = rows["narrow"]["paired"]["test"]["all"]
    assert found["nats"] == pytest.approx(np.log(parts["narrow"] / parts["swa"]), abs=1e-4)
    low, high = found["interval"]
    assert low <= found["nats"] <= high
    line = next(line for line in page.markdown(result).splitlines() if line.startswith("| narrow | swa |"))
    assert f"{found['nats']:+.3f}" in line and "MB for 0.00 MB" in line


def test_layers_that_keep_full_attention_are_counted():
    row = {"note": "a method", "start": "base", "full_share": 26 / 30}
    assert page._note(row) == "a method; full attention in 87% of the layers"
    assert page._note(row | {"full_share": 1.0}) == page._note(row | {"full_share": 0.0}) == "a method"
    named = row | {"note": "full attention in layers 1 and 2"}
    assert page._note(named) == named["note"]


def test_a_row_alone_is_not_set_against_what_is_not_there(home, done, tmp_path):
    table, _, _ = done
    result = run_table(table, job(home, tmp_path, train=(), rows=("narrow",)), say=silent)
    text = page.markdown(result)
    assert "## Side by side" not in text and "| narrow |" in text and "- `swa`:" in text


def test_a_text_without_cross_window_tokens_has_no_figure_for_them(home, tmp_path):
    """The whole piece lies in the window: no share, no difference, and JSON that any reader takes."""
    gap = {"control": "swa", "teacher": "teacher", "groups": ["cross_window", "all"]}
    data = {**TABLE, "base": str(home / "base"), "rows": ROWS, "gap": gap, "lengths": [], "context": 7}
    result = run_table(read_table(data, "t"), job(home, tmp_path, train=(), validation=()), say=silent)
    assert json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert by_name(result)["narrow"]["paired"]["test"]["cross_window"] is None
    text = page.markdown(result)
    assert "nan" not in text and "no cross-window token is there to state it for" in text


@pytest.mark.parametrize("note", ["a | b", "first\nsecond", "folded text\n", " |\n\n| "])
def test_a_note_ends_no_cell_of_the_page(done, note):
    _, _, result = done
    rows = [{**row, "note": note} for row in result["rows"]]
    lines = page.markdown({**result, "rows": rows}).splitlines()
    (line,) = (line for line in lines[lines.index(next(x for x in lines if x.startswith("| row | what"))) :][:5]
               if line.startswith("| swa |"))  # fmt: skip
    assert len(re.findall(r"(?<!\\)\|", line)) == 8 and " ".join(note.split()).replace("|", "\\|") in line


def test_nothing_is_said_of_a_row_that_is_not_measured(done):
    table, run, _ = done
    cells = {"swa": None, "narrow": None}
    assert summary._paired(table, table.row("narrow", ""), cells) == {"all": None, "cross_window": None}


def test_ruler_stands_task_by_task(done):
    table, run, result = done
    for name, row in by_name(result).items():
        assert row["missing"] == [], name
        assert [(cell["task"], cell["length"]) for cell in row["ruler"]["by_task"]] == [
            ("niah_single_1", 504), ("vt", 504)]  # fmt: skip
        assert row["ruler"]["n"] == 4 and "samples" not in row["ruler"]
    text = page.markdown(result)
    assert "| task | teacher | swa | narrow |" in text and text.count("\n| niah_single_1 |") == 1
    again = run_table(table, run, say=silent)
    assert again["rows"] == result["rows"]


@pytest.mark.parametrize("name", table_names())
def test_every_packaged_table_can_be_built(name):
    table = load_table(name)
    plans = row_plans(table, ModelShape(30, 9, 3, 64, 576, 49152, 8192))
    assert set(plans) == {row.name for row in table.rows if not row.needs}
    pairs = [(row, table.row(row.against, "")) for row in table.rows if row.against]
    for row, other in pairs:
        assert plans[row.name] != plans[other.name]


@pytest.mark.parametrize("change, expected", [
    ({"rows": [*ROWS[:2], {**ROWS[2], "against": "swb"}]}, "is set against 'swb', no row above it.*'swa'"),
    ({"rows": [{**ROWS[0], "against": "swa"}, ROWS[1]]}, "is set against 'swa', no row above it"),
    ({"ruler": {"samples": 0}}, "ruler.samples"),
    ({"ruler": {"smples": 3}}, "'samples'"),
])  # fmt: skip
def test_mistakes(home, change, expected):
    data = {**TABLE, "base": str(home / "base"), "rows": ROWS, "gap": None}
    with pytest.raises(UserError, match=expected):
        read_table(data | change, "t")


@pytest.mark.parametrize("ruler, expected", [
    ({"tasks": ["vtt"]}, "'vt'"),
    ({"lengths": [100]}, "the shortest is 256"),
    ({"tasks": ["qa_1"]}, "needs questions"),
])  # fmt: skip
def test_what_cannot_be_asked_is_said_before_anything_is_written(home, tmp_path, ruler, expected):
    data = {**TABLE, "base": str(home / "base"), "rows": ROWS, "gap": None, "lengths": [], "ruler": RULER | ruler}
    with pytest.raises(UserError, match=expected):
        run_table(read_table(data, "t"), job(home, tmp_path / "o", train=()), say=silent)
    assert not (tmp_path / "o").exists()


def record_of(name, mix):
    recipe = load_recipe("common", [f"data.mix.{kind}={share}" for kind, share in mix.items()]).model_dump(mode="json")
    own = Identity(row=name, recipe=recipe, plan={}, base=None, data={"texts": "t", "tokenizer": "k"}, start=None)
    return Known(Record(identity=own, digest="d", trained_parameters=1, tokens=2048, figures=()), {}, [])


@pytest.mark.parametrize("mix, words", [
    ({}, "the same 2,048 tokens of text t in the same order"),
    ({"recall": 0.3}, "the same 2,048 tokens of text t, rows generated in it included, in the same order"),
    ({"needle": 0.1}, "the same 2,048 tokens of text t, rows generated in it included, in the same order"),
])  # fmt: skip
def test_what_rows_were_trained_on_alike_says_that_some_of_it_was_generated(mix, words):
    known = {name: record_of(name, mix) for name in ("a", "b")}
    assert page._alike([summary._alike(["a", "b", "c"], known)]) == [f"Trained on {words}: `a`, `b`."]
    other = known | {"b": record_of("b", {"recall": 0.9})}
    (line,) = page._alike([summary._alike(["a", "b"], other)])
    assert line == "Not trained on the same tokens, so not to be compared: `a`, `b`."


@pytest.mark.parametrize("speed", [None, 24.0])
def test_the_speed_of_training_is_no_figure_of_a_row(done, speed):
    table, _, result = done
    rows = [row | {"training_tokens_per_s": speed} for row in result["rows"]]
    text = page.markdown(result | {"rows": rows})
    warned = "a difference between rows may be one between these" in text
    assert ("| training tokens/s |" in text) == warned == bool(speed)


@pytest.mark.parametrize("needles, lengths, window, near", [
    (20, (1024, 2048), 128, {"1024": 102}),
    (20, (1024, 2048), 64, {}),
    (20, (1024, 2048), 256, {"1024": 102, "2048": 205}),
    (2, (512,), 128, {}),  # at depths 0.3 and 0.7 alone
])  # fmt: skip
def test_needles_that_a_window_finds_are_named(done, needles, lengths, window, near):
    table, _, result = done
    asked = table.model_copy(update={"needles": needles, "lengths": lengths, "window": window})
    assert needles_in_window(asked) == near
    shown = result | {"table": asked.model_dump(mode="json"), "needles_in_window": near}
    assert ("which finds them without a memory" in page.markdown(shown)) == bool(near)


@pytest.mark.parametrize("enough, rounds", [(0.0, 1), (1e9, ROUNDS)])
def test_speed_says_in_how_many_rounds_it_was_found(monkeypatch, enough, rounds):
    monkeypatch.setitem(measure.__globals__, "ENOUGH_SECONDS", enough)
    model = convert(tiny_llama(layers=2), Plan((Reach("window", 8),) * 2)).eval()
    found = run_speed("row", model, Job(None, None, EvalOptions.of(context=16), Parts(None), None))
    assert found["n"] == rounds
