"""Records: figures outlive the weights, are never mixed with another row's, and name what is missing."""

import importlib.util
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from anchorlm.cli import __main__ as program
from anchorlm.core import UserError
from anchorlm.plan import ModelShape
from anchorlm.results import load_table, records, rows, run, run_table
from anchorlm.results.plans import row_plans
from tiny_table import TABLE, by_name, job, silent

DOCS = Path(__file__).resolve().parents[2] / "docs" / "results"
CELLS = ["perplexity test", "perplexity validation", "needles heldout 160", "needles train 160"]


def table_of(home, **changes):
    chosen = [row for row in TABLE["rows"] if row["name"] in ("swa", "gates", "gates-lora")]
    table = TABLE | {"base": str(home / "base"), "gap": {"control": "swa", "teacher": "gates"}, "rows": chosen}
    (home / "small.yaml").write_text(yaml.safe_dump(table))
    return load_table(home / "small.yaml", **changes)


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    """(folder, result) of one whole run."""
    out = tmp_path_factory.mktemp("out")
    return out, run_table(table_of(home), job(home, out), say=silent)


@pytest.fixture
def bare(done, tmp_path):
    """A folder with the records of that run and nothing else."""
    shutil.copytree(done[0] / "records", tmp_path / "out" / "records")
    return tmp_path / "out"


@pytest.fixture
def idle(monkeypatch):
    """Nothing may be trained, opened or measured."""
    for where, name in ((run, "train"), (rows.Built, "open"), (run.Cell, "measure")):
        monkeypatch.setattr(where, name, lambda *a, **k: pytest.fail("ran"))


def untimed(rows):
    """Rows without how fast they were trained, which is never twice the same."""
    return [{key: value for key, value in row.items() if key != "training_tokens_per_s"} for row in rows]


def edit(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))
    return content


def test_a_record_says_what_the_row_is_and_what_was_measured(home, done):
    record = records.read_record(done[0] / "records" / "gates-lora.json")
    assert set(record.cells(run.cells(table_of(home), _stores(home)))) == set(CELLS)
    assert record.identity.start.row == "gates" and record.identity.start.recipe["stage2"]["steps"] == 0
    assert record.identity.data and record.identity.recipe["stage2"]["lr"] == 0.05
    assert record.tokens == 4 * 32 and record.trained_parameters > 0
    assert {"processor", "dtype", "packages", "threads"} <= set(record.figures[0].environment)
    assert (done[0] / "records" / "gates-lora.json").stat().st_size < 12_000
    assert not (done[0] / "records" / "heads.json").exists()


def _stores(home):
    from anchorlm.convert.bases import load_base

    tokenizer = load_base(str(home / "base")).tokenizer
    return {name: run._store((str(home / f"{name}.txt"),), tokenizer) for name in ("test", "validation")}


def test_records_alone_give_the_same_page(home, done, bare, idle):
    page = (done[0] / "results.md").read_text()
    again = run_table(table_of(home), job(home, bare, train=()), say=pytest.fail)
    assert again == done[1] and (bare / "results.md").read_text() == page
    shutil.rmtree(bare)
    given = job(home, bare, train=(), measure=False, records=done[0] / "records")
    assert run_table(table_of(home), given, say=silent) == again
    kept = {path.name: path.read_bytes() for path in (bare / "records").iterdir()}
    assert kept == {path.name: path.read_bytes() for path in (done[0] / "records").iterdir()}


def test_weights_without_their_figures_take_the_record(home, done, tmp_path, idle):
    for part in ("rows", "records"):
        shutil.copytree(done[0] / part, tmp_path / "out" / part)
    assert run_table(table_of(home), job(home, tmp_path / "out", train=()), say=silent) == done[1]


def test_only_a_row_without_a_record_is_trained(home, done, bare, monkeypatch):
    (bare / "records" / "gates-lora.json").unlink()
    trained, said, real = [], [], run.train
    monkeypatch.setattr(run, "train", lambda *a, **k: (trained.append(a[4].name), real(*a, **k)))
    with pytest.raises(UserError, match="'gates-lora' starts from 'gates', which is not trained; add 'gates'"):
        run_table(table_of(home), job(home, bare, rows=("gates-lora",)), say=silent)
    shown = run_table(table_of(home), job(home, bare, train_rows=False), say=silent)
    assert by_name(shown)["gates-lora"]["missing"] == ["not trained"] and not by_name(shown)["gates"]["missing"]
    found = run_table(table_of(home), job(home, bare), say=said.append)
    assert trained == ["gates", "gates-lora"]  # the weights that it starts from are needed too
    assert "gates: its weights are needed; it is trained again" in said
    assert not by_name(found)["gates-lora"]["missing"] and not any(line.startswith("swa") for line in said)
    assert untimed(found["rows"]) == untimed(done[1]["rows"])  # the same machine gives the same weights


def test_a_cell_that_was_never_measured_needs_the_row_named(home, bare, monkeypatch):
    table, said = table_of(home, needles=3), []
    monkeypatch.setattr(run, "train", lambda *a, **k: pytest.fail("trained"))
    shown = by_name(run_table(table, job(home, bare, train=(), rows=("swa",)), say=silent))
    assert not shown["swa"]["missing"] and shown["gates"]["missing"] == CELLS[2:]
    shown = by_name(run_table(table, job(home, bare, train=()), say=said.append))
    lacks = "its record lacks needles heldout 160; needles train 160, and its weights are not here"
    assert said == [f"{name}: {lacks}; with --rows {name} it is trained again" for name in ("gates", "gates-lora")]
    assert shown["gates"]["texts"]["test"]["n"] == 4
    shown = by_name(run_table(table, job(home, bare, train_rows=False, rows=("gates",)), say=silent))
    assert shown["gates"]["missing"] == CELLS[2:]
    with pytest.raises(UserError, match="rows that are not trained: gates; give --train"):
        run_table(table, job(home, bare, train=(), rows=("gates",)), say=silent)


def test_a_named_row_is_trained_again_and_both_settings_are_kept(home, done, bare):
    said = []
    found = run_table(table_of(home, limit=2), job(home, bare, rows=("gates",)), say=said.append)
    assert said[0].endswith("its weights are not here; it is trained again") and "gates: training" in said
    assert by_name(found)["gates"]["texts"]["test"]["n"] == 2
    record = records.read_record(bare / "records" / "gates.json")
    assert len(record.figures) == 6  # two texts by two limits, two wordings
    shown = by_name(run_table(table_of(home), job(home, bare, measure=False), say=silent))
    assert untimed([shown["gates"]]) == untimed([by_name(done[1])["gates"]])


def test_weights_of_another_training_are_never_shown_with_the_old_figures(home, bare):
    path = bare / "records" / "gates.json"
    old = edit(path, digest="0" * 16)["figures"]
    found = run_table(table_of(home, limit=2), job(home, bare, rows=("gates",)), say=silent)
    assert not by_name(found)["gates"]["missing"]
    assert len(records.read_record(path).figures) == len(old) == 4  # those of the other weights are gone


def test_a_record_of_another_row_is_refused_or_left_out(home, done, bare, idle):
    changed = load_table(home / "small.yaml")
    training = changed.training.model_copy(update={"set": changed.training.set | {"stage1.lr": 0.01}})
    other, before = changed.model_copy(update={"training": training}), (bare / "records" / "gates.json").read_bytes()
    reason = r"its record is of another row: recipe.stage1.lr was 0.002, now 0.01"
    with pytest.raises(UserError, match=rf"row 'gates': {reason}; remove .*gates.json, or leave it out with --page"):
        run_table(other, job(home, bare), say=silent)
    shown = by_name(run_table(other, job(home, bare, measure=False), say=silent))
    assert shown["gates"]["missing"] == [reason.replace("\\", "")] and shown["gates"]["texts"] == {}
    assert shown["gates-lora"]["missing"] and not shown["swa"]["missing"]
    assert "- `gates`: its record is of another row" in (bare / "results.md").read_text()
    assert (bare / "records" / "gates.json").read_bytes() == before


def test_what_differs_is_named(home, done):
    own = records.read_record(done[0] / "records" / "gates-lora.json").identity
    text = own.model_copy(update={"data": {**own.data, "texts": "0" * 16}})
    plan = own.model_copy(update={"plan": {**own.plan, "slots": {}}})
    bare = own.model_copy(update={"recipe": None, "data": None})
    start = own.model_copy(update={"start": own.start.model_copy(update={"base": "other"})})
    older = own.model_dump()
    del older["plan"]["slots"]["k1"]["gap"], older["recipe"]["detach"]  # fields that came later
    for other, expected in (
        (own, None), (records.Identity(**older), None), (own.model_copy(update={"data": None}), None),
        (text, "data.texts was"), (plan, "plan.slots"), (bare, "was not trained"),
        (start, "of the row it starts from, base was 'other'"),
        (own.model_copy(update={"start": None}), "start was 'base', now 'gates'"),
    ):  # fmt: skip
        found = records.difference(other, own, 2)
        assert (found is None) == (expected is None) and (expected or "") in (found or "")


def test_rows_of_other_machines_are_named(home, bare, idle):
    path = bare / "records" / "gates.json"
    environment = json.loads(path.read_text())["environments"][0] | {"processor": "Another", "dtype": "bfloat16"}
    edit(path, environments=[environment])
    found = run_table(table_of(home), job(home, bare, measure=False), say=silent)
    assert [one["rows"] for one in found["environments"]] == [["swa", "gates-lora"], ["gates"]]
    text = (bare / "results.md").read_text()
    assert "- bfloat16, " in text and "Another; anchorlm" in text and text.endswith(": `gates`\n")


def test_an_untrained_row_of_another_dtype_stands_until_it_is_named(home, bare):
    said, double = [], {"dtype": "float64", "train": ()}
    found = run_table(table_of(home), job(home, bare, **double), say=said.append)
    assert not said and found["environments"][0]["dtype"] != "float64"
    lacks = run_table(table_of(home, limit=2), job(home, bare, rows=("swa",), **double), say=said.append)
    assert said[0].endswith("and its record is of another dtype; it is measured again")
    assert {one["dtype"] for one in lacks["environments"] if "swa" in one["rows"]} == {"float64"}


@pytest.mark.parametrize("content, expected", [
    ("{", "is damaged; remove it"),
    ('{"figures": [], "environments": []}', "'identity' is missing"),
])  # fmt: skip
def test_a_damaged_record_is_one_line(home, bare, content, expected):
    (bare / "records" / "gates.json").write_text(content)
    with pytest.raises(UserError, match=f"gates.json.*{expected}") as error:
        run_table(table_of(home), job(home, bare), say=silent)
    assert "\n" not in str(error.value)


FAULTS = {
    "no figure": lambda value: {},
    "a list": lambda value: [1],
    "no n": lambda value: {k: v for k, v in value.items() if k != "n"},
    "n in words": lambda value: value | {"n": "many"},
    "no value": lambda value: {k: v for k, v in value.items() if k != "value"},
    "nothing said": lambda value: value | {"value": None},
    "value in words": lambda value: value | {"value": "good"},
    "not a number": lambda value: value | {"value": math.nan},
    "half an interval": lambda value: value | {"interval": [1]},
    "no groups": lambda value: value | {"groups": {}},
    "groups in a list": lambda value: value | {"groups": []},
    "documents without groups": lambda value: value | {"documents": [{}] * 4},
    "too few documents": lambda value: value | {"documents": [{"all": [1, 1], "cross_window": [1, 1]}]},
    "measured nowhere": lambda value: value | {"environment": {}},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_figure_is_never_shown(home, done, tmp_path, fault):
    """A record is refused by name; what is kept of a measurement is measured again."""
    shutil.copytree(done[0], tmp_path / "out")
    path = tmp_path / "out" / "records" / "swa.json"
    stored = json.loads(path.read_text())
    stored["figures"][0]["value"] = FAULTS[fault](stored["figures"][0]["value"])
    if fault == "measured nowhere":
        stored["environments"] = [{}] * len(stored["environments"])
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match="swa.json is damaged; remove it"):
        run_table(table_of(home), job(home, tmp_path / "out"), say=silent)
    path.unlink()
    for part in (tmp_path / "out" / "parts").iterdir():
        kept = json.loads(part.read_text())
        if kept["key"].get("table") == "perplexity":
            part.write_text(json.dumps(kept | {"value": FAULTS[fault](kept["value"])}))
    again = run_table(table_of(home), job(home, tmp_path / "out", rows=("swa",)), say=silent)
    assert by_name(again)["swa"]["texts"] == by_name(done[1])["swa"]["texts"]


@pytest.mark.parametrize("name, content, expected", [
    ("gates/run.json", "{}", "run.json is damaged"),
    ("gates/run.json", '{"data": {"texts": 1}, "training": []}', "run.json is damaged"),
    ("gates-lora/memory.safetensors", "", "memory.safetensors is damaged"),
    ("gates-lora/memory.safetensors", "12345678" * 9, "memory.safetensors is damaged"),
])  # fmt: skip
def test_a_damaged_file_of_a_trained_row_is_named(home, done, tmp_path, name, content, expected):
    shutil.copytree(done[0], tmp_path / "out")
    (tmp_path / "out" / "rows" / name).write_text(content)
    with pytest.raises(UserError, match=expected):
        run_table(table_of(home), job(home, tmp_path / "out"), say=silent)


@pytest.mark.parametrize("folder, expected", [("none", "is no folder"), ("base", "holds no record")])
def test_a_folder_without_records_is_refused(home, done, tmp_path, capsys, folder, expected):
    arguments = ["results", str(home / "small.yaml"), "--data", str(home / "test.txt"), "-o", str(tmp_path / "o")]
    assert program.run([*arguments, "--records", str(home / folder)]) == 2
    assert expected in capsys.readouterr().err and not (tmp_path / "o").exists()


@pytest.mark.parametrize("name, folder", [("smollm2", DOCS), ("sharing", DOCS.parent / "sharing")])
def test_the_committed_records_are_of_the_packaged_table(tmp_path, name, folder):
    table = load_table(name)
    shape = ModelShape(30, 9, 3, 64, 576, 49152, 8192)
    found = {path.stem: records.read_record(path) for path in folder.glob("*.json")}
    assert found
    for name, record in found.items():
        place = rows.Place(table.base, record.identity.base, tmp_path)
        built = rows.build_rows(table, row_plans(table, shape), place)
        assert records.difference(record.identity, records.identity(built[name], None), 30) is None, name
    assert sum(path.stat().st_size for path in folder.glob("*.json")) < 500_000


def test_the_tool_brings_page_and_records_into_the_documentation(done, tmp_path, monkeypatch):
    place = importlib.util.spec_from_file_location("figures", DOCS.parents[1] / "tools" / "figures.py")
    figures = importlib.util.module_from_spec(place)
    place.loader.exec_module(figures)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "older.json").write_text("{}")
    (tmp_path / "docs" / "results.md").write_text(f"# Results\n\n{figures.START}\nold\n{figures.END}\n\nmore\n")
    figures.main(str(done[0]))
    text = (tmp_path / "docs" / "results.md").read_text()
    assert "old\n" not in text and text.count("| gates-lora |") == 5 and text.endswith("more\n")
    assert {path.stem for path in (tmp_path / "docs" / "results").iterdir()} == {"older", "swa", "gates", "gates-lora"}


def test_an_option_that_a_rule_gets_later_changes_no_digest(home):
    """What rows were measured under stays theirs while they leave the new option out."""

    def digest(options):
        plan = SimpleNamespace(to_dict=lambda: {"slots": {"k": {"options": options}}})
        return rows.Built(table.rows[0], plan, None, None, place).digest()

    table, place = load_table(home / "table.yaml"), SimpleNamespace(fingerprint="f", dtype="float32", out=home)
    assert digest({"tokens": 4}) == digest({"tokens": 4, "follow": None}) != digest({"tokens": 4, "follow": 0.5})
