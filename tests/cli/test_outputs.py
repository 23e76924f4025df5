"""Nothing is written over what is not ours: files of the same name, files in place of folders, folders of models."""

import json
from pathlib import Path

import pytest

from anchorlm.report.html import write_page

TINY = ["--set", "window=8", "--set", "chunk=8"]

RESULTS = [
    (("eval", "{folder}", "--suite", "ar", "--context", "200"), ("ar.json",)),
    (("analyze", "{folder}", "--what", "cost"), ("cost.json",)),
    (("reproduce", "figure5"), ("figure5.json", "reproduce.json", "reproduce.md", "reproduce.html")),
    (("reproduce", "--page"), ("reproduce.json", "reproduce.md", "reproduce.html")),
    (("reproduce", "figure5", "--dry-run"), ("figure5.json", "reproduce.json", "reproduce.md", "reproduce.html")),
    (("results", "core", "--base", "{base}"), ("core.json", "core.md", "bench.json", "ppl.json")),
    (("results", "retention", "--base", "{base}"), ("retention.json",)),
    (("results", "smollm2", "--base", "{base}", "--data", "{tmp}/text.txt"), ("results.json", "results.md")),
    (("results", "smollm2", "--base", "{base}", "--data", "{tmp}/text.txt", "--page"), ("results.json", "results.md")),
    (("compare", "{base}", "--methods", "swa", "--data", "{tmp}/text.txt"), ("comparison.json", "comparison.md")),
    (("compare", "{base}", "--data", "{tmp}/text.txt", "--page"), ("comparison.json", "comparison.md")),
    (("mad", "--models", "transformer", "--tasks", "compression"), ("mad.json", "mad.md", "mad.html")),
    (("quickstart",), ("plan.json", "ppl.json", "reading.json", "text.json", "commands.json", "report.html")),
]
WRITERS = [
    *(arguments for arguments, _ in RESULTS),
    ("convert", "{base}", *TINY),
    ("merge", "{folder}"),
    ("train", "{folder}", "--data", "{tmp}/text.txt"),
    ("train", "{folder}", "--dry-run"),
]
FOREIGN = ["my notes", "{}", "[1]", '{"kind": "else"}', '{"kind": ["results"]}', "\0\xff"]


@pytest.fixture
def ask(call, base_folder, folder, tmp_path, monkeypatch):
    """Run a line that must end in one line of error before any weight is read."""
    # Inner functions, found anew at each call: a module that is first imported meanwhile would keep what it imports.
    for place in ("anchorlm.convert.bases._read_weights", "anchorlm.convert.load._whole", "anchorlm.mad.run.measure"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("a model was opened"))
    (tmp_path / "text.txt").write_text("some words " * 9)
    names = {"base": base_folder, "folder": folder, "tmp": tmp_path}

    def run(arguments, *more):
        code, text, error = call(*[argument.format(**names) for argument in (*arguments, *map(str, more))])
        said = [line for line in error.splitlines() if not line.startswith(("no measured layers", "evaluated on"))]
        assert code == 2 and text == "" and len(said) == 1, error
        return said[0]

    return run


def named(lines):
    return [" ".join(word for word in line if "{" not in word) for line in lines]


@pytest.mark.parametrize("arguments", WRITERS, ids=named(WRITERS))
def test_an_output_that_is_a_file_is_told_before_anything_is_opened(ask, tmp_path, arguments):
    for out in ("text.txt", "text.txt/run"):
        assert "text.txt is a file; name a folder" in ask(arguments, "-o", tmp_path / out)


def fresh(place, content):
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode("latin-1"))
    return place


@pytest.mark.parametrize("arguments, files", RESULTS, ids=named(arguments for arguments, _ in RESULTS))
def test_a_file_that_no_run_wrote_is_left_alone(ask, tmp_path, arguments, files):
    for number, name in enumerate(files):
        for content in FOREIGN if name.endswith(".json") else FOREIGN[:1]:
            out = tmp_path / f"out{number}"
            place = fresh(out / name, content)
            assert str(place) in ask(arguments, "-o", out)
            assert [*out.iterdir()] == [place] and place.read_bytes() == content.encode("latin-1")


@pytest.mark.parametrize("arguments, files", RESULTS, ids=named(arguments for arguments, _ in RESULTS))
def test_a_folder_in_the_place_of_a_result_is_told_before_anything_is_opened(ask, tmp_path, arguments, files):
    for number, name in enumerate(files):
        (tmp_path / f"out{number}" / name).mkdir(parents=True)
        assert str(tmp_path / f"out{number}" / name) in ask(arguments, "-o", tmp_path / f"out{number}")


@pytest.mark.parametrize("arguments", [row for row, _ in RESULTS], ids=named(row for row, _ in RESULTS))
def test_results_are_not_put_into_the_folder_of_a_model(ask, base_folder, folder, tmp_path, arguments):
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    (tmp_path / "begun" / "config.yaml").touch()
    for out in (base_folder, folder, tmp_path / "begun"):
        before = sorted(Path(out).rglob("*"))
        assert f"output {out} is the folder of a model" in ask(arguments, "-o", out)
        assert sorted(Path(out).rglob("*")) == before


PLACE = ("place", "{base}", "--data", "{tmp}/text.txt", "--window", "8", "--context", "40", "--budget", "30KB")
PAGES = [
    (("eval", "{folder}", "--suite", "ar", "--context", "200", "--report"), "page.html"),
    (("report", "{tmp}", "-o"), "page.html"),
    ((*PLACE, "-o", "{tmp}/plan.yaml", "--report"), "page.html"),
    ((*PLACE, "-o"), "plan.yaml"),
]


@pytest.mark.parametrize("arguments, name", PAGES, ids=[f"{row[0]} {name}" for row, name in PAGES])
def test_a_named_file_of_somebody_else_is_left_alone(ask, tmp_path, arguments, name):
    place = fresh(tmp_path / name, "<h1>Mine</h1>")
    assert "was not written by anchorlm" in ask(arguments, place)
    assert place.read_text() == "<h1>Mine</h1>"


def test_the_figures_beside_a_plan_are_not_written_over(ask, tmp_path):
    for content in FOREIGN:
        place = fresh(tmp_path / "plan.json", content)
        assert str(place) in ask(PLACE, "-o", tmp_path / "plan.yaml")
        assert place.read_bytes() == content.encode("latin-1") and not (tmp_path / "plan.yaml").exists()


def test_what_was_written_here_is_written_again(call, folder, tmp_path):
    write_page({}, tmp_path / "page.html", "old")
    line = ("eval", folder, "--suite", "ar", "--context", "200", "--limit", "1", "-o", tmp_path / "run")
    for _ in range(2):
        assert call(*line, "--report", tmp_path / "page.html")[0] == 0
    assert json.loads((tmp_path / "run" / "ar.json").read_text())["kind"] == "eval"
    assert "<h1>old</h1>" not in (tmp_path / "page.html").read_text()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder in which nobody can write")
@pytest.mark.parametrize("arguments", WRITERS, ids=named(WRITERS))
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_opened(ask, arguments):
    assert "nothing can be written in /proc" in ask(arguments, "-o", "/proc/run")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder in which nobody can write")
def test_a_page_that_cannot_be_written_is_told_before_anything_is_opened(ask, tmp_path):
    text, out = ("--data", tmp_path / "text.txt"), ("-o", tmp_path / "plan.yaml")
    assert "nothing can be written in /proc" in ask(("eval", "{folder}"), *text, "--report", "/proc/zz/a.html")
    assert "nothing can be written in /proc" in ask(("place", "{base}"), *text, *out, "--report", "/proc/zz/a.html")
    assert "nothing can be written in /proc" in ask(("place", "{base}"), *text, "-o", "/proc/zz/plan.yaml")


@pytest.mark.parametrize("verb, out, page", [
    ("eval {folder}", "p.html", "p.html"), ("eval {folder}", "p.html/run", "p.html"),
    ("eval {folder}", "p.html", "a/../p.html"), ("place {base}", "p.yaml", "p.yaml"),
    ("place {base}", "p.yaml", "p.json"), ("place {base}", "p.yaml", "p.parts"),
])  # fmt: skip
def test_a_page_and_an_output_have_two_names(ask, tmp_path, verb, out, page):
    given = ("--data", tmp_path / "text.txt", "-o", tmp_path / out, "--report", tmp_path / page)
    assert f"--report {tmp_path / page} is where --out " in ask(verb.split(), *given)
    assert not (tmp_path / out).exists()


INSIDE = [(verb, "parts") for verb, _ in RESULTS] + [
    (verb, name) for verb, _ in RESULTS if verb[0] in ("compare", "results") and "core" not in verb
    and "retention" not in verb for name in ("rows", "records")
] + [(("reproduce", "figure5"), "slots"), (("reproduce", "--page"), "figure3")]  # fmt: skip


@pytest.mark.parametrize("arguments, name", INSIDE, ids=[f"{' '.join(row[:2])} {name}" for row, name in INSIDE])
def test_a_file_in_place_of_a_folder_inside_is_told_before_anything_is_opened(ask, tmp_path, arguments, name):
    fresh(tmp_path / "out" / name, "mine")
    assert f"output {tmp_path / 'out' / name} is a file; name a folder" in ask(arguments, "-o", tmp_path / "out")
