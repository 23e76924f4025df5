"""The results table on a tiny base: every row and cell, files, resume without measuring again."""

import json

import pytest

from anchorlm import results
from anchorlm.cli import __main__ as program
from anchorlm.convert.attach import convert
from anchorlm.convert.bases import load_base
from anchorlm.convert.save import save
from anchorlm.core import UserError
from anchorlm.results import core_table
from small import char_tokenizer, tiny_llama

TEXT = "A quiet morning. The boats went out. Nobody spoke of the storm. " * 20


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORLM_CACHE", str(tmp_path / "cache"))
    tiny_llama().save_pretrained(tmp_path / "base")
    char_tokenizer().save_pretrained(tmp_path / "base")
    base = load_base(str(tmp_path / "base"))
    slot = {"write": 0, "read": [0, 1], "chunk": 16, "rule": "swiglu-ttt"}
    model = convert(base, {"attention": {"kind": "window", "window": 16, "sinks": 2}, "slots": {"head": slot}})
    save(model, tmp_path / "trained", base.tokenizer)
    (tmp_path / "text.txt").write_text(TEXT)
    return results.Core(
        (str(tmp_path / "text.txt"),), str(tmp_path / "base"), str(tmp_path / "trained"), window=16, sinks=2,
        context=128, lengths=(32, 64), limit=3, new_tokens=2, rounds=1, peaks=False,
    )  # fmt: skip


def test_table_and_resume(settings, tmp_path, monkeypatch):
    result = results.core(settings, tmp_path / "out")
    rows = {row["model"]: row for row in result["rows"]}
    assert list(rows) == ["teacher", "swa", "anchor-f", "anchor"]
    assert rows["anchor"]["trained_parameters"] > 0 == rows["swa"]["trained_parameters"]
    flat = [rows["anchor"]["costs"][n]["state_bytes"] for n in ("32", "64")]
    grows = [rows["teacher"]["costs"][n]["state_bytes"] for n in ("32", "64")]
    assert all("state_bytes_most" in cell for row in rows.values() for cell in row["costs"].values())
    assert flat[0] == flat[1]
    assert grows[1] > 1.9 * grows[0]
    assert rows["anchor-f"]["perplexity"] == pytest.approx(rows["swa"]["perplexity"])  # gates start at zero
    text = (tmp_path / "out" / "core.md").read_text()
    assert text.count("| anchor |") == 2 and "read t/s 64" in text
    assert json.loads((tmp_path / "out" / "core.json").read_text())["rows"] == json.loads(json.dumps(result["rows"]))

    monkeypatch.setattr(core_table, "measure", lambda *a, **k: pytest.fail("measured again"))
    again = results.core(settings, tmp_path / "out")
    assert again["rows"] == result["rows"]


def test_a_missing_row_is_named_before_measuring(settings, tmp_path):
    bad = results.Core(settings.data, settings.base, extra={"mine": str(tmp_path / "none")})
    with pytest.raises(UserError, match="row 'mine': folder .*none does not exist"):
        results.core(bad, tmp_path / "out")


def test_the_command_names_what_it_measures(settings, tmp_path, capsys):
    words = ["--data", *settings.data, "--base", settings.base, "--adapter", settings.adapter, "--lengths", "32,48"]
    sizes = ["--window", "16", "--context", "128", "--limit", "2", "--no-peaks", "-o", str(tmp_path / "out")]
    assert program.run(["results", "core", *words, *sizes]) == 0
    shown = capsys.readouterr()
    assert f"measuring {settings.base} and its hybrids at 32, 48 tokens" in shown.err
    assert "read t/s 48" in shown.out


def test_a_length_named_twice_is_one_length():
    from anchorlm.cli.options import whole_numbers

    assert whole_numbers(["1024", "2048,1024"], "--lengths", "tokens") == (1024, 2048)
