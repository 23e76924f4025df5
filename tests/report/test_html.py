"""The report: every section from its file, self-contained, escaped, and clear errors."""

import json
import re
from html.parser import HTMLParser

import pytest

from anchorlm.bench import measure
from anchorlm.core import UserError
from anchorlm.eval import run_eval
from anchorlm.report import write_report
from anchorlm.report.html import SECTIONS
from small import char_tokenizer, tiny_llama

TEXT = "A quiet morning. The boats went out. Nobody spoke of the storm. " * 60
PLAN = {
    "source": "tiny",
    "layers": [{"layers": "0-1", "attention": "window 16 + 4 sinks", "writes": "head", "reads": "head"}],
    "slots": [{"slot": "head", "rule": "swiglu-ttt", "bytes": 1536}],
    "state_bytes": {"fast weights": 1536, "momentum": 0, "window ring": 4096},
    "plan": {},
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "book.txt").write_text(TEXT)
    models = {"tiny": tiny_llama(), "teacher <b>": tiny_llama(max_positions=100)}
    options = {"name": "tiny", "limit": 5, "out": folder, "cache_dir": folder / "cache", "window": 16}
    teacher = {name: models[name] for name in ["teacher <b>"]}
    run_eval(models["tiny"], char_tokenizer(), "ppl,niah", folder / "book.txt", 200, versus=teacher, **options)
    bench = measure(models, [16, 64], 3, rounds=1)
    for row in bench["rows"]:
        row["peak_bytes"] = 1_000_000 + row["length"]
    points = [{"tokens": n, "tokens_per_second": 9.5, "state_bytes": 5632, "decode_ms": None} for n in (100, 200, 300)]
    files = {
        "plan": PLAN,
        "bench": bench,
        "reading": {"kind": "reading", "model": "tiny", "text": "a book", "points": points},
        "text": {"kind": "text", "title": "What it writes", "prompt": "Once", "text": "<script>alert(1)</script>"},
        "limits": {"kind": "limits", "lines": ["It does not retrieve facts from far back."]},
        "commands": {"kind": "commands", "lines": ["anchorlm eval tiny --suite ppl"]},
        "other": {"kind": "else"},
        "list": [1],
    }  # fmt: skip
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_suites_of_scored_samples_have_a_section_each(tmp_path):
    options = {"context": 1200, "limit": 1, "out": tmp_path, "ruler": {"tasks": ["niah_single_1", "vt"]}}
    models = [tiny_llama(max_positions=2000, seed=seed) for seed in (0, 1)]
    run_eval(models[0], char_tokenizer(), "ruler,ar", versus={"twin": models[1]}, **options)
    shown = write_report(tmp_path, tmp_path / "r.html").read_text()
    assert "Suite ruler" in shown and "Suite ar" in shown and "twin: score by task and length" in shown
    assert "prompt and answer, tokens" in shown and "1200/0-128" in shown and shown.count("<svg") == 2


@pytest.fixture(scope="module")
def page(run_folder):
    return write_report([run_folder], run_folder / "out" / "report.html", "tiny").read_text()


@pytest.mark.parametrize(
    "expected",
    ["window 16 + 4 sinks", "1,536", "Perplexity on held-out text", "beyond the 100 positions", "Reading a book",
     "Facts hidden in the text", "Cost against length", "What it writes", "It does not retrieve", "anchorlm eval tiny",
     "one more token, ms", "state of one sequence, MB", "torch", "&lt;script&gt;"],
)  # fmt: skip
def test_sections(page, expected):
    assert expected in page


def test_self_contained_and_well_formed(page):
    assert not re.search(r"https?://|//cdn|<script|<link|@import|src=", page)
    # perplexity, one map (the other model is not measured), two of reading, four of cost
    assert page.count("<svg") == 8
    assert "<metadata" not in page
    opened = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "br", "hr", "img"):
                opened.append(tag)

        def handle_endtag(self, tag):
            assert opened.pop() == tag

        def handle_startendtag(self, tag, attrs):
            pass

    Parser().feed(page)
    assert not opened


def test_clip_paths_resolve_inside_the_page(page):
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(re.findall(r'id="([^"]+)"', page))


@pytest.mark.parametrize("kind", [kind for kind in SECTIONS if kind != "plan"])
def test_a_result_without_its_parts_is_named(tmp_path, kind):
    """Whatever is missing of it: everything, or what its rows hold."""
    suite = {"suite": "ppl"} if kind == "eval" else {}
    for name in ("rows", "items", "texts"):
        (tmp_path / "bad.json").write_text(json.dumps({"kind": kind, name: [{}], **suite}))
        try:
            write_report(tmp_path, tmp_path / "r.html")
        except UserError as error:
            assert f"bad.json lacks parts that a result of kind '{kind}' has" in str(error)
    (tmp_path / "bad.json").write_text(json.dumps({"kind": kind}))
    (tmp_path / "r.html").unlink(missing_ok=True)
    with pytest.raises(UserError, match=f"bad.json lacks parts that a result of kind '{kind}' has"):
        write_report(tmp_path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_kinds_that_are_no_names_are_left_out(tmp_path, run_folder):
    (tmp_path / "good.json").write_bytes((run_folder / "ppl.json").read_bytes())
    (tmp_path / "bad.json").write_text(json.dumps({"kind": ["eval"]}))
    assert write_report(tmp_path, tmp_path / "r.html").is_file()
    (tmp_path / "worse.json").write_text(json.dumps({"kind": "eval", "suite": "ppl", "rows": []}))
    with pytest.raises(UserError, match="worse.json lacks parts"):
        write_report(tmp_path, tmp_path / "r.html")


def test_bad_input(tmp_path):
    (tmp_path / "text.txt").write_text("a text")
    with pytest.raises(UserError, match=r"text.txt is a file; name the folder that holds it"):
        write_report(tmp_path / "text.txt", tmp_path / "r.html")
    with pytest.raises(UserError, match="does not exist"):
        write_report(tmp_path / "missing", tmp_path / "r.html")
    with pytest.raises(UserError, match="no result file"):
        write_report(tmp_path, tmp_path / "r.html")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(UserError, match=r"a\.json is not readable JSON"):
        write_report(tmp_path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
