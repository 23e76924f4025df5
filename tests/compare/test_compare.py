"""A whole comparison of two methods: every row and figure, the same tokens for all, and going on after a stop."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from anchorlm.cli import __main__ as program
from anchorlm.compare import apart
from anchorlm.results import rows, run
from anchorlm.results.records import read_record
from anchorlm.results.sections import seed_lines

NAMES = ["teacher", "teacher-common", "swa", "swa-common", "lolcats", "lolcats-common", "lolcats-measured",
         "anchor", "anchor-common", "anchor-measured"]  # fmt: skip
COMMON = [name for name in NAMES if name.endswith(("-common", "-measured"))]


def by_name(result):
    return {row["name"]: row for row in result["rows"]}


def test_every_row_has_every_figure(done):
    found = by_name(done[1])
    assert list(found) == NAMES and not any(row["missing"] for row in found.values())
    for name, row in found.items():
        trained = name not in ("teacher", "swa")
        assert bool(row["trained_parameters"]) == trained == bool(row["training_tokens_per_s"])
        assert row["texts"]["test"]["all"]["interval"] and set(row["texts"]["test"]["gap"]) == {"all", "cross_window"}
        assert row["needles"]["heldout"]["200"]["n"] == 1 and row["recall"]["n"] == 8
        assert all(value > 0 for value in row["speed"]["speeds"].values())


def test_common_rows_see_the_same_tokens_in_the_same_order(done):
    out, result, seen = done
    first = seen["teacher-common"]
    assert len(first) == 6 and all(seen[name] == first for name in COMMON)
    (alike,) = result["alike"]
    assert alike["same"] and alike["rows"] == COMMON and alike["tokens"] == 6 * 64
    records = [json.loads((out / "records" / f"{name}.json").read_text()) for name in COMMON]
    assert len({json.dumps(record["identity"]["data"]) for record in records}) == 1
    assert len({json.dumps(record["identity"]["recipe"]) for record in records}) == 1
    assert {record["tokens"] for record in records} == {384}
    assert f"Trained on the same 384 tokens of text {alike['text']}" in (out / "comparison.md").read_text()


def test_own_recipes_keep_their_stages(done):
    found = by_name(done[1])
    assert found["lolcats"]["recipe"] == "lolcats" and found["lolcats"]["tokens"] == 384
    assert "3 and 3 steps of 64 tokens, 1 of its 8 passes each" in found["lolcats"]["note"]
    assert found["anchor"]["recipe"] == "anchor" and found["anchor-common"]["recipe"] == "common"


def test_measured_rows_have_memory_in_the_named_layers_alone(done):
    found = by_name(done[1])
    for name in ("lolcats-measured", "anchor-measured"):
        slots = found[name]["plan"]["slots"]
        assert {layer for slot in slots.values() for layer in slot["read"]} == {1}
    assert found["lolcats"]["beyond_window"] > found["lolcats-measured"]["beyond_window"] > 0


def test_the_page_has_every_section(done):
    text = (done[0] / "comparison.md").read_text()
    heads = [line for line in text.splitlines() if line.startswith("## ")]
    assert heads == ["## Perplexity, test text", "## Needles, held-out wordings", "## Recall, held-out wordings",
                     "## Speed"]  # fmt: skip
    assert all(text.count(f"| {name} |") == 5 for name in NAMES)
    assert "training tokens/s" in text and "| of all tokens |" in text


@pytest.fixture
def idle(monkeypatch):
    """Nothing may be trained, opened or measured."""
    for where, name in ((run, "train"), (rows.Built, "open"), (run.Cell, "measure")):
        monkeypatch.setattr(where, name, lambda *a, **k: pytest.fail("ran"))


def test_a_finished_comparison_is_taken_as_it_is(done, command, idle):
    page = (done[0] / "comparison.md").read_text()
    assert program.run(command(done[0])) == 0
    assert (done[0] / "comparison.md").read_text() == page


def test_a_row_with_a_record_is_not_trained_again(done, command, idle, tmp_path):
    shutil.copytree(done[0] / "records", tmp_path / "out" / "records")
    assert program.run(command(tmp_path / "out")) == 0
    assert (tmp_path / "out" / "comparison.md").read_text() == (done[0] / "comparison.md").read_text()


def test_a_killed_comparison_goes_on(done, command, tmp_path, monkeypatch):
    """One row has no record; its training is stopped after a step, and the same command ends it."""
    from anchorlm.train import loop

    out, trained, after, train = tmp_path / "out", [], loop._after_step, run.train
    shutil.copytree(done[0] / "records", out / "records")
    (out / "records" / "anchor-common.json").unlink()

    def stop(run_, stage, optimizer):
        after(run_, stage, optimizer)
        loop._save(run_, stage, optimizer)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train", lambda *a, **k: (trained.append(a[4].name), train(*a, **k)))
    monkeypatch.setattr(loop, "_after_step", stop)
    assert program.run(command(out)) == 130
    assert "- `anchor-common`: training stands at step 1 of 6" in _page(command, out)
    monkeypatch.setattr(loop, "_after_step", after)
    assert program.run(command(out)) == 0
    assert trained == ["anchor-common"] * 2
    ppl = [by_name(json.loads((folder / "comparison.json").read_text()))["anchor-common"]["texts"] for folder in
           (out, done[0])]  # fmt: skip
    assert ppl[0] == ppl[1]


def _page(command, out):
    assert program.run(command(out, "--page")) == 0
    return (out / "comparison.md").read_text()


def test_another_budget_in_the_same_folder_is_refused(done, command, capsys):
    assert program.run(command(done[0], "--tokens", "500")) == 2
    assert "stage2.steps was 6, now 7" in capsys.readouterr().err


def test_texts_alone_are_parted(home, command, tmp_path):
    files = [str(home / "texts" / name) for name in ("a.txt", "b.txt")]
    assert apart([str(home / "texts")]) == ((files[0],), (files[1],))
    assert apart([files[0]]) == ((), (files[0],))
    many = [str(home / "texts" / f"{n:02}.txt") for n in range(21)]
    for path in many:
        (home / "texts" / path).write_text("x")
    assert apart(many)[1] == (many[0], many[10], many[20])
    for path in many:
        (home / "texts" / path).unlink()
    out, texts = tmp_path / "out", ["--data", str(home / "texts"), "--layers", "1", "--window", "16", "-o"]
    small = ["--context", "700", "--lengths", "200", "--recall", "1", "--tokens", "64", "--set", "data.length=64"]
    words = ["compare", str(home / "base"), "--methods", "swa", *texts, str(out), *small, "--page"]
    assert program.run(words) == 0
    assert json.loads((out / "comparison.json").read_text())["texts"]["test"]["names"] == ["b.txt"]


def test_the_tool_brings_page_and_records_into_the_documentation(done, tmp_path, monkeypatch):
    root = Path(__file__).resolve().parents[2]
    place = importlib.util.spec_from_file_location("figures", root / "tools" / "figures.py")
    figures = importlib.util.module_from_spec(place)
    place.loader.exec_module(figures)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "comparison.md").write_text(f"# Methods\n\n{figures.START}\nold\n{figures.END}\n\nmore\n")
    figures.main(str(done[0]))
    text = (tmp_path / "docs" / "comparison.md").read_text()
    assert "old\n" not in text and text.count("| lolcats-measured |") == 5 and text.endswith("more\n")
    kept = list((tmp_path / "docs" / "comparison").iterdir())
    assert {path.stem for path in kept} == set(NAMES) and sum(path.stat().st_size for path in kept) < 60_000


def test_the_committed_records_can_be_read():
    folder = Path(__file__).resolve().parents[2] / "docs" / "comparison"
    found = {path.stem: read_record(path) for path in folder.glob("*.json")}
    assert all(record.identity.row == name for name, record in found.items())
    assert sum(path.stat().st_size for path in folder.glob("*.json")) < 500_000


def test_the_spread_over_seeds_is_mean_least_and_most():
    def row(name, ppl, repeats=""):
        return {"name": name, "repeats": repeats, "recall": {"value": ppl / 10},
                "texts": {"test": {"all": {"ppl": ppl}, "cross_window": None}}}  # fmt: skip

    result = {"table": {"recall": 1}, "texts": ["test"], "rows": [row("a", 4.0), row("a.seed1", 6.0, "a"), row("b", 1)]}
    lines = seed_lines(result)
    assert lines[-2] == "| a | 2 | 5.00 (4.00 to 6.00) | - | 0.50 (0.40 to 0.60) |"
    assert not seed_lines(result | {"rows": result["rows"][2:]})
