"""What only some tables have: rows set against each other, and RULER by task."""

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.plan import ModelShape
from anchorlm.results import load_table, page, run_table, summary, table_names
from anchorlm.results.plans import row_plans
from anchorlm.results.table import read_table
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


def test_a_row_alone_is_not_set_against_what_is_not_there(home, done, tmp_path):
    table, _, _ = done
    result = run_table(table, job(home, tmp_path, train=(), rows=("narrow",)), say=silent)
    text = page.markdown(result)
    assert "## Side by side" not in text and "| narrow |" in text and "- `swa`:" in text


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
