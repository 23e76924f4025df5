"""The runner: side by side rows, files, exact resume, suggestions, and contexts beyond the model."""

import json
import math

import pytest

from anchorlm.analyze.explain.job import Options, names_of
from anchorlm.core import UserError
from anchorlm.eval import EvalOptions, check_suites, run_eval, suites
from anchorlm.eval.ar import ArOptions
from anchorlm.eval.parts import model_digest
from anchorlm.eval.ruler import RulerOptions, chosen_tasks
from anchorlm.eval.table import lines, table
from killed import kept, run_through
from small import char_tokenizer, tiny_llama

TEXT = "A quiet morning. The boats went out. Nobody spoke of the storm. " * 60


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT)
    return tmp_path / "book.txt"


def evaluate(book, model=None, suites="ppl,niah", **options):
    values = {"context": 256, "versus": {"teacher": tiny_llama(seed=1)}, "cache_dir": book.parent / "cache"}
    values |= {"window": 16, "limit": 12, **options}
    return run_eval(model or tiny_llama(), char_tokenizer(), suites, book, **values)


def test_rows_side_by_side_and_files(book, tmp_path):
    results = evaluate(book, out=tmp_path / "out")
    assert [row["model"] for row in results["ppl"]["rows"]] == ["model", "teacher"]
    ours, theirs = results["ppl"]["rows"]
    assert theirs["first_over_this"]["value"] == pytest.approx(ours["value"] / theirs["value"])
    assert ours["groups"]["cross_window"]["tokens"] > 0
    for suite, result in results.items():
        assert json.loads((tmp_path / "out" / f"{suite}.json").read_text()) == json.loads(json.dumps(result))
        assert {"seed", "context", "limit"} <= set(result["options"])
        assert result["data"]["hash"] and result["environment"]["packages"]["torch"]
        assert all({"n", "interval", "value", "plan", "dtype"} <= set(row) for row in result["rows"])
    for result in results.values():
        shown = lines(*table(result))
        assert len(shown) == 3 and shown[1].startswith("model")


def again(book, tmp_path, model=None, **options):
    """As a further run in the same folder, whose result was taken away but whose parts are there."""
    (tmp_path / "out" / "ppl.json").unlink(missing_ok=True)
    return evaluate(book, model, "ppl", out=tmp_path / "out", **options)


def test_another_limit_reads_other_pieces(book, tmp_path):
    found = [again(book, tmp_path, limit=limit) for limit in (3, 9, None)]
    fresh = [evaluate(book, suites="ppl", limit=limit) for limit in (3, 9, None)]
    assert [one["ppl"]["rows"][0]["value"] for one in found] == [one["ppl"]["rows"][0]["value"] for one in fresh]


def test_a_stopped_run_goes_on_and_gives_the_same(book, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "PIECES_PER_PART", 2)
    straight = evaluate(book)
    calls, seen = [], []
    original = suites.ppl.score

    def stops_after_two(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(suites.ppl, "score", stops_after_two)
    with pytest.raises(KeyboardInterrupt):
        evaluate(book, out=tmp_path / "out")
    resumed = evaluate(book, out=tmp_path / "out", progress=lambda *a: seen.append(a))
    assert len(calls) == 3 + 2 * 6 - 2
    assert seen[0] == ("ppl model", 2, 12) and seen[-1][1] == seen[-1][2]
    for suite in straight:
        assert straight[suite]["rows"] == resumed[suite]["rows"]


def test_a_run_killed_again_and_again_ends_with_the_same_files(book, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "PIECES_PER_PART", 2)
    evaluate(book, out=tmp_path / "straight")
    kills = run_through(lambda: evaluate(book, out=tmp_path / "killed"))
    assert kills >= 4 and kept(tmp_path / "killed") == kept(tmp_path / "straight")


def test_another_model_text_or_seed_is_not_taken_for_a_finished_part(book, tmp_path):
    first = again(book, tmp_path)["ppl"]["rows"][0]
    other = again(book, tmp_path, tiny_llama(seed=7))["ppl"]["rows"][0]
    shorter = again(book, tmp_path, context=128)["ppl"]["rows"][0]
    assert len({first["value"], other["value"], shorter["value"]}) == 3
    digests = [model_digest(m) for m in (tiny_llama(), tiny_llama(seed=7), tiny_llama(max_positions=99), tiny_llama())]
    assert len(set(digests)) == 3 and digests[0] == digests[3]


def test_a_folder_keeps_one_run(book, tmp_path):
    """The same run, and one with a model more, may be written again; every other one is refused before it measures."""
    out, twin = tmp_path / "out", {"teacher": tiny_llama(seed=1)}
    evaluate(book, suites="ppl", versus=None, out=out)
    evaluate(book, suites="ppl", versus=twin, out=out)
    kept = (out / "ppl.json").read_bytes()
    assert evaluate(book, suites="ppl", versus=twin, out=out, batch=2)["ppl"]["rows"] == json.loads(kept)["rows"]
    others = [
        ({"versus": None}, "it has model teacher, which this run leaves out"),
        ({"versus": {"teacher": tiny_llama(seed=2)}}, "its model teacher has changed"),
        ({"model": tiny_llama(seed=3)}, "its model model has changed"),
        ({"name": "other"}, "it has model model, which this run leaves out"),
        ({"limit": 3}, "limit was 12, now 3"),
        ({"context": 128}, "context was 256, now 128"),
        ({"window": 8}, "window was 16, now 8"),
        ({"seed": 1}, "seed was 0, now 1"),
    ]
    kept = (out / "ppl.json").read_bytes()
    for options, reason in others:
        with pytest.raises(UserError, match=f"ppl.json holds another run: {reason}.*; name another folder"):
            evaluate(book, **{"suites": "ppl", "out": out, **options})
    (tmp_path / "other.txt").write_text("Another text. " * 400)
    with pytest.raises(UserError, match="data was '.*', now '.*'"):
        evaluate(tmp_path / "other.txt", suites="ppl", out=out)
    assert (out / "ppl.json").read_bytes() == kept
    for content in ("{", "[]", '{"kind": "eval"}', '{"kind": "mad", "rows": []}'):
        (out / "ppl.json").write_text(content)
        with pytest.raises(UserError, match=r"ppl.json is not the result of a run \(eval\); name another folder"):
            evaluate(book, suites="ppl", out=out)


def test_two_models_of_one_name_are_refused(book):
    with pytest.raises(UserError, match="model 'teacher' is named twice"):
        evaluate(book, name="teacher")


def test_beyond_the_positions_is_a_row_not_a_crash(book):
    results = evaluate(book, versus={"teacher": tiny_llama(max_positions=128)})
    for result in results.values():
        row = result["rows"][1]
        assert row["value"] is None and row["note"] == "beyond the 128 positions of the base model"
        assert "beyond the 128 positions" in lines(*table(result))[2]
    assert math.isfinite(results["ppl"]["rows"][0]["value"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suites": "pppl"}, "suite 'pppl' is unknown; did you mean 'ppl'"),
        ({"suites": ""}, "no suite named; allowed: .*niah, .*ppl"),
        ({"windows": 3}, "eval option 'windows' is unknown; did you mean 'window'"),
        ({"context": 0}, "context is 0; a whole number of at least 1"),
        ({"limit": 0}, "limit is 0"),
        ({"depths": [0.5, 1.5]}, "numbers between 0 and 1"),
        ({"context": 100_000, "versus": None, "model": tiny_llama(max_positions=200_000)}, "needs at least 100000"),
        ({"templates": "magik", "suites": "niah"}, "did you mean 'magic'"),
    ],
)
def test_bad_input(book, options, message):
    with pytest.raises(UserError, match=message):
        evaluate(book, **options)


@pytest.mark.parametrize(("limit", "cells", "n"), [(None, 5, 4), (1, 1, 1), (3, 3, 1), (10, 5, 2), (100, 5, 4)])
def test_needles_stay_within_the_limit(book, limit, cells, n):
    row = evaluate(book, suites="niah", limit=limit, versus=None)["niah"]["rows"][0]
    assert [cell["n"] for cell in row["cells"]] == [n] * cells


@pytest.mark.parametrize("name, given, kept", [
    ("lengths", [300, 200, 300], (300, 200)), ("depths", [1, 0.5, 1], (1, 0.5)),
    ("templates", ["magic", "magic"], ("magic",)),
])  # fmt: skip
def test_what_a_list_names_is_taken_once(name, given, kept):
    assert getattr(EvalOptions.of(**{name: given}), name) == kept
    own = EvalOptions.of(ar={"distances": [8, 4, 8]}, ruler={"tasks": ["vt", "vt"]})
    assert own.own_of("ar", ArOptions).distances == (8, 4) and chosen_tasks(own.own_of("ruler", RulerOptions))[0] == (
        "vt",
    )


def test_analyses_take_each_size_once():
    assert Options.of(kept=[8, 4, 8], windows=[2, 2]).kept == (8, 4)
    assert check_suites("ppl,ppl") == names_of("ppl,ppl", ["ppl"]) == ["ppl"]
