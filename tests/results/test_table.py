"""Tables as data on a tiny base: training, measuring, going on, and every mistake before anything is written."""

import json

import pytest
import yaml

from anchorlm.cli import __main__ as program
from anchorlm.convert import files
from anchorlm.convert.attach import convert
from anchorlm.convert.bases import load_base, load_base_config
from anchorlm.core import UserError
from anchorlm.describe import bytes_at, state_bytes
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from anchorlm.results import load_table, page, rows, run, run_table, summary, table_names
from anchorlm.results.plans import fixed_bytes, row_plans, same_bytes_window
from tiny_table import FAST, KEPT, TABLE, by_name, job, silent


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    """(folder, result, said lines) of one whole run."""
    out, said = tmp_path_factory.mktemp("out"), []
    return out, run_table(load_table(home / "table.yaml"), job(home, out), say=said.append), said


def test_every_row_is_measured(done):
    out, result, said = done
    found = by_name(result)
    assert list(found) == [row["name"] for row in TABLE["rows"]]
    assert {name for name, row in found.items() if row["missing"]} == {"heads"}
    for name, row in found.items():
        trained = "recipe" in next(entry for entry in TABLE["rows"] if entry["name"] == name)
        assert ((row.get("trained_parameters") or 0) > 0) == trained
        for text in row["texts"].values():
            assert text["all"]["ppl"] > 1 and text["n"] == 4
        for cells in row["needles"].values():
            assert cells["160"]["n"] == 2
    assert said.count("swa-lora: training") == 1 and "swa: training" not in said
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(result))


def test_tokens_count_the_row_it_starts_from(done):
    found = by_name(done[1])
    assert found["swa"]["tokens"] == 0
    assert (found["gates"]["tokens"], found["gates-lora"]["tokens"]) == (2 * 32, 4 * 32)


def test_state_bytes_are_those_of_bf16_and_the_control_has_as_many(home, done):
    found = by_name(done[1])
    shape = ModelShape.from_config(load_base_config(home / "base"), 2)
    assert found["swa"]["state_bytes"]["64"] == sum(state_bytes(build("swa", shape, window=8, sinks=2), shape).values())
    assert found["swa"]["state_bytes"]["64"] == found["swa"]["state_bytes"]["32768"]
    assert found["teacher"]["state_bytes"]["32768"] > 500 * found["teacher"]["state_bytes"]["64"] - 8 * 500
    beyond = {name: row.get("beyond_window") for name, row in found.items()}
    assert (
        beyond["swa"] == 0
        and beyond["gates"] == found["gates"]["state_bytes"]["64"] - found["swa"]["state_bytes"]["64"]
    )
    window = found["wide"]["control"]["window"]
    fewer, same = (fixed_bytes(build("swa", shape, window=w, sinks=2), shape) for w in (window - 1, window))
    assert fewer < found["mixed"]["state_bytes"]["64"] <= same
    assert f"window {window}: the bytes of `mixed`" in page.markdown(done[1])


def cell(*sums):
    """A perplexity cell of documents with these nats on 10 cross-window targets each."""
    return {"documents": [{"cross_window": [total, 10]} for total in sums]}


def test_the_gap_closed_is_that_of_nats_paired_by_document(home):
    table = load_table(home / "table.yaml")
    measured = {"swa-lora": cell(40, 60, 50), "teacher-lora": cell(30, 20, 50), "gates": cell(35, 40, 50)}
    assert summary._whole(table, "cross_window", measured)["nats"] == pytest.approx(50 / 30)
    shares = {name: summary._share(table, "cross_window", measured, name) for name in measured}
    assert [shares[name]["value"] for name in measured] == [0, 1, 0.5]
    assert shares["gates"]["interval"] is None  # a draw of the last document alone leaves no gap
    measured["swa-lora"]["documents"][2]["cross_window"][0] = 60
    low, high = summary._share(table, "cross_window", measured, "gates")["interval"]
    assert 0.5 <= low < high <= 1
    assert summary._share(table, "cross_window", measured, "swa") is None
    assert summary._share(table, "cross_window", measured | {"teacher-lora": cell(90, 90, 90)}, "gates") is None


def test_the_page_names_every_row_and_what_is_missing(done):
    text = (done[0] / "results.md").read_text()
    for name in by_name(done[1]):
        assert text.count(f"| {name} |") == (0 if name == "heads" else 5)  # what it is, two texts, two wordings
    assert "- `heads`: per-head reach" in text


def test_a_finished_table_is_neither_trained_nor_measured_again(home, done, monkeypatch):
    monkeypatch.setattr(run, "train", lambda *a, **k: pytest.fail("trained again"))
    monkeypatch.setattr(rows.Built, "open", lambda *a: pytest.fail("opened again"))
    again = run_table(load_table(home / "table.yaml"), job(home, done[0], train=()), say=silent)
    assert again["rows"] == done[1]["rows"]


def test_a_killed_run_goes_on_with_the_next_cell(home, tmp_path, monkeypatch):
    table, said = load_table(home / "table.yaml"), []
    chosen = job(home, tmp_path / "out", rows=("teacher", "swa"))
    real = run.Cell.measure

    def measure(cell, name, *rest):
        if (cell.name, name) == ("needles train 160", "teacher"):
            raise KeyboardInterrupt
        return real(cell, name, *rest)

    monkeypatch.setattr(run.Cell, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        run_table(table, chosen, say=silent)
    text = (tmp_path / "out" / "results.md").read_text()
    assert "- `teacher`: needles train 160\n" in text
    assert "- `swa-lora`: not trained\n" in text
    monkeypatch.setattr(run.Cell, "measure", real)
    run_table(table, chosen, say=said.append)
    assert [line for line in said if line.startswith("teacher")] == ["teacher: needles train 160 (4 of 4)"]
    assert not (tmp_path / "out" / "rows").exists()


def test_a_stopped_training_is_named_and_goes_on(home, tmp_path, monkeypatch):
    from anchorlm.train import loop

    table = load_table(home / "table.yaml")
    chosen = job(home, tmp_path / "out", rows=("swa-lora",))
    real = loop._after_step

    def after(run_, stage, optimizer):
        real(run_, stage, optimizer)
        loop._save(run_, stage, optimizer)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_after_step", after)
    with pytest.raises(KeyboardInterrupt):
        run_table(table, chosen, say=silent)
    monkeypatch.setattr(loop, "_after_step", real)
    shown = run_table(table, job(home, tmp_path / "out", measure=False), say=silent)
    assert by_name(shown)["swa-lora"]["missing"] == ["training stands at step 1 of 2"]
    again = run_table(table, chosen, say=silent)
    assert by_name(again)["swa-lora"]["missing"] == []


def test_a_folder_of_another_run_is_refused(home, done):
    out = done[0]
    other = load_table(home / "table.yaml")
    changed = other.training.model_copy(update={"set": other.training.set | {"stage2.lr": 0.01}})
    before = (out / "results.md").read_bytes()
    with pytest.raises(UserError, match=r"row 'teacher-lora': .*recipe.stage2.lr was 0.05, now 0.01"):
        run_table(other.model_copy(update={"training": changed}), job(home, out), say=silent)
    with pytest.raises(UserError, match=r"row 'teacher-lora': .*data.texts"):
        run_table(other, job(home, out, train=(str(home / "test.txt"),)), say=silent)
    assert (out / "results.md").read_bytes() == before


def test_a_row_of_an_older_start_is_refused(home, done):
    record = done[0] / "rows" / "gates-lora.start.json"
    text = record.read_text()
    record.write_text(text.replace(json.loads(text)["weights"], "0" * 16))
    try:
        with pytest.raises(UserError, match="'gates-lora' was trained from an older 'gates'"):
            run_table(load_table(home / "table.yaml"), job(home, done[0]), say=silent)
    finally:
        record.write_text(text)


def test_a_new_plan_takes_over_what_it_shares(home, done):
    base = load_base(str(home / "base"))
    plan = {"attention": {"kind": "window", "window": 8, "sinks": 2}, "slots": KEPT["slots"] | FAST}
    model = convert(base, plan)
    fresh = {name: p.detach().clone() for name, p in model.memory_parameters().items()}
    rows.take_over(model, done[0] / "rows" / "gates")
    stored = files.read_tensors(done[0] / "rows" / "gates" / files.MEMORY)
    changed = {name for name, p in model.memory_parameters().items() if not p.equal(fresh[name])}
    assert changed and changed <= set(stored)
    assert all(model.memory_parameters()[name].equal(stored[name]) for name in stored)
    none = convert(load_base(str(home / "base")), {"attention": {"kind": "window", "window": 8}})
    with pytest.raises(UserError, match="no slot in common"):
        rows.take_over(none, done[0] / "rows" / "gates")


def test_a_growing_state_has_no_window_of_the_same_bytes(home):
    shape = ModelShape.from_config(load_base_config(home / "base"), 2)
    with pytest.raises(UserError, match="grows with the text"):
        same_bytes_window(build("full", shape), shape, 4)


def test_a_table_without_lengths_has_no_needles(home, tmp_path):
    table = load_table(home / "table.yaml", lengths=())
    found = run_table(table, job(home, tmp_path / "out", rows=("swa",)), say=silent)
    assert by_name(found)["swa"]["missing"] == [] and by_name(found)["swa"]["needles"] == {"heldout": {}, "train": {}}
    assert "## Needles" not in (tmp_path / "out" / "results.md").read_text()


def test_the_packaged_table_can_be_built():
    assert table_names() == ["sharing", "smollm2", "titan"]
    table = load_table("smollm2")
    shape = ModelShape(30, 9, 3, 64, 576, 49152, 8192)
    plans = row_plans(table, shape)
    assert set(plans) == {row.name for row in table.rows if not row.needs}
    constant = [name for name, plan in plans.items() if plan.slots]
    windows = [fixed_bytes(plan, shape) for name, plan in plans.items() if name.startswith("wide-")]
    sizes = {name: fixed_bytes(plans[name], shape) for name in constant}
    for name, size in sizes.items():  # every memory has a window alone of at least its bytes
        assert any(size <= window for window in windows), name
    for window in windows:  # and each window is as large as the largest row that it controls
        assert any(size <= window < 1.02 * size for size in sizes.values())
    assert len({table.recipe(row).data.length for row in table.rows if row.recipe}) == 1
    heads, layers = (bytes_at(plans[name], shape, 2048) for name in ("heads-lora", "layers-4-lora"))
    assert plans["heads"] == plans["heads-lora"] and heads < layers


def _with(**changes):
    return {**TABLE, "base": "{home}/base", **changes}


def _rows(*entries):
    return _with(rows=[{"name": "swa", "plan": "swa"}, *entries], gap=None)


GATES = {"name": "g", "plan": KEPT, "recipe": "kept", "set": {"stage2.steps": 0}}
NO_STAGE1 = {"stage1.steps": 0}
BROKEN = [
    (_with(wndow=8), [], "'window'"),
    (_with(rows=[]), [], "rows"),
    (_with(rows=["swa"]), [], "list of rows"),
    (_with(gap={"control": "swa-lra", "teacher": "teacher"}), [], "'swa-lora'"),
    (_with(gap={"contrl": "swa"}), [], "'control'"),
    (_with(gap={"control": "swa", "teacher": "swa"}), [], "both name row 'swa'; name two rows"),
    (_with(alike=[["swa-lora", "swa"]]), [], "alike names row 'swa', which is not trained"),
    (_with(wordings=[]), [], "wordings is empty; give at least 1"),
    ("window: 8\nwindow: 9\nrows: []", [], "'window' stands twice"),
    (_with(base="smollm2-135"), [], "smollm2-135m"),
    (_rows({"name": "swa", "plan": "full"}), [], "'swa' is there twice"),
    (_rows({"name": "a", "plann": "full"}), [], "'plan'"),
    (_rows({"plan": "full"}), [], "'name' is missing"),
    (_rows({"name": "A B", "plan": "full"}), [], "'A B'"),
    (_rows({"name": "a"}), [], "has no plan"),
    (_rows({"name": "a", "plan": "ancor"}), [], "'anchor'"),
    (_rows({"name": "a", "plan": {"preset": "anchor", "chnk": 8}}), [], "'chunk'"),
    (_rows({"name": "a", "plan": {"slots": {"s": {"write": 9}}}}), [], "layers 0 to 1"),
    (_rows({"name": "a", "plan": 3}), [], "plan is 3"),
    (_rows({"name": "a", "plan": {"same_bytes": "swb"}}), [], "'swa'"),
    (_rows({"name": "a", "plan": {"same_bytes": "a"}}), [], "names the row itself"),
    (
        _rows({"name": "a", "plan": {"same_bytes": "swa"}}, {"name": "b", "plan": {"same_bytes": "a"}}),
        [],
        "itself a window of the bytes of 'swa'; name 'swa'",
    ),
    (_rows({"name": "a", "start": "swb", "recipe": "anchor"}), [], "'swa'"),
    (_rows({"name": "a", "start": "swa", "recipe": "anchor"}), [], "not trained"),
    (_rows({"name": "a", "plan": "swa", "recipe": "ancor"}), [], "'anchor'"),
    (_rows({"name": "a", "plan": "swa", "recipe": "anchor", "set": {"stage2.stps": 3}}), [], "'steps'"),
    (_rows({"name": "a", "plan": "swa", "recipe": "anchor", "mix": {"recal": 0.1}}), [], "'recall'"),
    (_rows({"name": "a", "plan": "swa", "set": {"seed": 1}}), [], "no recipe"),
    (_rows({"name": "a", "plan": "swa", "needs": "more"}), [], "takes no plan"),
    (_rows({"name": "a", "plan": "swa", "recipe": "lora", "set": {"stage2.w_ce": 0}}), [], "nothing to minimise"),
    (_rows({"name": "a", "plan": {"slots": FAST}, "recipe": "kept"}), [], "w_keep alone"),
    (_rows({"name": "a", "plan": "swa", "recipe": "anchor"}), [], "nothing to train"),
    (
        _with(rows=[GATES, {"name": "a", "start": "g", "plan": "swa", "recipe": "lora", "set": NO_STAGE1}], gap=None),
        [],
        "neither LoRA",
    ),
    (TABLE, [], "'base' is missing"),
    (_with(), ["--rows", "swa,techer"], "'teacher'"),
    (_with(), ["--rows", "swa-lora"], "--train"),
    (_with(), ["--rows", "gates-lora", "--train", "{home}/train.txt"], "starts from 'gates'"),
    (_with(), ["--train", "{home}/none.txt"], "none.txt does not exist"),
    (_with(), ["--no-train", "--validation", "{home}/none.txt"], "none.txt does not exist"),
    (_with(), ["--no-train", "--context", "100000"], "needs at least 100000"),
    (_with(), ["--no-train", "--lengths", "32"], "too short"),
    (_with(), ["--no-train", "--lengths", "1k"], "'1k'"),
    (_with(), ["--window", "8"], "--window has no meaning"),
    ("rows: [", [], "not valid YAML"),
]


@pytest.mark.parametrize("table, flags, expected", BROKEN, ids=[expected for _, _, expected in BROKEN])
def test_a_mistake_is_one_line_and_nothing_is_written(home, tmp_path, capsys, table, flags, expected):
    text = table if isinstance(table, str) else yaml.safe_dump(table)
    (tmp_path / "t.yaml").write_text(text.replace("{home}", str(home)))
    flags = [flag.replace("{home}", str(home)) for flag in flags]
    arguments = ["results", str(tmp_path / "t.yaml"), "--data", str(home / "test.txt"), "-o", str(tmp_path / "o")]
    code = program.run([*arguments, *flags])
    error = capsys.readouterr().err.strip()
    assert code == 2 and expected in error and "\n" not in error
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("arguments, expected", [
    (("smollm", "--data", "x"), "'smollm2'"),
    (("smollm2",), "--data"),
    (("core", "--needles", "3"), "--needles has no meaning for core"),
    (("retention", "--page"), "--page has no meaning for retention"),
])  # fmt: skip
def test_flags_of_the_other_kind_are_refused(tmp_path, capsys, arguments, expected):
    assert program.run(["results", *arguments, "-o", str(tmp_path / "o")]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_the_command_shows_the_page_without_running(home, done, capsys):
    arguments = ["results", str(home / "table.yaml"), "--data", str(home / "test.txt"), "--page", "-o", str(done[0])]
    assert program.run(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Tiny") and "validation text" not in shown
    run_table(load_table(home / "table.yaml"), job(home, done[0], measure=False), say=silent)
