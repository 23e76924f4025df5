"""`anchorlm place` from text to a plan that `convert` takes."""

import json

import pytest

from anchorlm.cli.show import clock
from planted import LENGTH, PLANTED, planted, texts
from small import char_tokenizer


@pytest.fixture(scope="module")
def place_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    planted().save_pretrained(folder / "base")
    char_tokenizer().save_pretrained(folder / "base")
    lines = [json.dumps({"text": text}) for text in texts()]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def place(call, place_folder, tmp_path):
    def run(*more):
        given = ["--window", 8, "--sinks", 2, "--context", LENGTH, "--budget", "30KB", "--no-needles"]
        data = place_folder / "texts.jsonl"
        return call("place", place_folder / "base", "--data", data, *given, "-o", tmp_path / "plan.yaml", *more)

    return run


def test_the_plan_it_writes_can_be_converted(place, call, place_folder, tmp_path):
    code, text, error = place("--report", tmp_path / "page.html", "--steps", 1)
    assert code == 0, error
    assert f"plan: full in {PLANTED};" in text and "CPU seconds" in text and "anchorlm convert" in text
    assert (tmp_path / "page.html").stat().st_size > 10_000
    stored = json.loads((tmp_path / "plan.json").read_text())
    assert stored["kind"] == "place" and stored["settings"]["seed"] == 0 and stored["environment"]["packages"]["torch"]
    code, _, error = call("convert", place_folder / "base", "--plan", tmp_path / "plan.yaml", "-o", tmp_path / "hybrid")
    assert code == 0, error
    code, text, _ = call("info", tmp_path / "hybrid", "--json")
    kinds = json.loads(text)["plan"]["layers"]
    assert kinds == {str(PLANTED): {"kind": "full"}}


def test_json_alone_on_stdout(place):
    code, text, _ = place("--json", "--steps", 0, "--layers", f"0,{PLANTED}")
    found = json.loads(text)
    assert code == 0 and [row["layer"] for row in found["layers"]] == [PLANTED, 0]


def test_single_heads_on_the_command_line(place, call, place_folder, tmp_path):
    code, text, error = place("--steps", 0, "--keep", "heads", "--report", tmp_path / "page.html")
    assert code == 0, error
    assert f"plan: heads in {PLANTED}.0, {PLANTED}.1;" in text and "the same of single KV heads" in text
    assert f"heads in {PLANTED}.0, {PLANTED}.1" in (tmp_path / "page.html").read_text()
    code, _, error = place("--keep", "head")
    assert code == 2 and error.strip().endswith("keep 'head' is unknown; did you mean 'heads'?")


@pytest.mark.parametrize("keep", ["mixed,slots", "heads,mixed", "mixed,mixed"])
def test_a_short_name_stands_alone(place, keep):
    code, _, error = place("--keep", keep)
    assert code == 2 and error.strip().endswith(f"--keep '{keep}': mixed stands for full,slots and is named alone")


@pytest.mark.parametrize("seconds, text", [(0, "0:00"), (65.4, "1:05"), (3725, "1:02:05")])
def test_time_left(seconds, text):
    assert clock(seconds) == text
