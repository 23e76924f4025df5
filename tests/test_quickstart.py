import json

import pytest

from anchorlm.cli.__main__ import run
from anchorlm.convert.adapters import add_lora
from anchorlm.convert.save import save
from anchorlm.generate.questions import QUESTIONS, holds
from anchorlm.quickstart import ADAPTER, OTHER, Settings, nearby, packaged_text, quickstart
from hybrids import make, shake_lora
from small import char_tokenizer, tiny_llama

SMALL = {"documents": 2, "context": 128, "every": 100, "book_tokens": 300, "teacher_tokens": 200, "new_tokens": 5}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "tiny"
    tiny_llama(layers=4).save_pretrained(folder)
    char_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def ran(base, tmp_path_factory):
    """(result, lines said, output folder) of a quickstart with a small adapter"""
    place = tmp_path_factory.mktemp("quickstart")
    model = make(base, "anchor")
    add_lora(model, 2, 4)
    shake_lora(model)
    record = {"training": {"steps": 3}, "limits": ["It finds no fact far back."]}
    save(model, place / "adapter", char_tokenizer(), record)
    said = []
    settings = Settings(out=str(place / "out"), base=str(base), adapter=str(place / "adapter"), **SMALL)
    return quickstart(settings, said.append), said, place / "out"


def test_every_step_is_said_as_its_command(ran):
    result, said, _ = ran
    verbs = [line.split()[1] for line in result["commands"]]
    assert verbs == ["info", "eval", "generate", "generate", "generate", "generate"]
    assert ["$ " + line for line in result["commands"]] == [line for line in said if line.startswith("$ ")]


def test_each_command_parses(ran, capsys):
    for line in ran[0]["commands"]:
        import shlex

        words = shlex.split(line)[1:]
        assert run([words[0], "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in words if word.startswith("--"))


def test_state_stays_and_the_teacher_s_grows(ran):
    result, _, _ = ran
    ours = [point["state_bytes"] for point in result["reading"]]
    theirs = [point["state_bytes"] for point in result["teacher_reading"]]
    assert [point["tokens"] for point in result["reading"]] == [100, 200, 300]
    assert max(ours) - min(ours) < 0.1 * theirs[-1]
    assert theirs == sorted(theirs) and theirs[-1] > 3 * theirs[0]


def test_the_book_is_asked_without_reading_it_again(ran):
    result, said, out = ran
    assert [row["expected"] for row in result["questions"]] == [asked.expected for asked in QUESTIONS]
    text, page = "\n".join(said), (out / "report.html").read_text()
    for row, line in zip(result["questions"], [x for x in result["commands"] if "--prompt" in x], strict=True):
        assert f"expected:             {row['lead']} {row['expected']}" in text
        assert row["expected"] in page and set(row["right"]) == {"after the book", "beside the sentence"}
        assert row["question"] in line
    assert json.loads((out / "questions.json").read_text())["rows"] == result["questions"]
    assert result["seconds"]["questions"] < result["seconds"]["book"] + 5


def test_the_book_says_what_is_asked_far_before_its_end():
    book = " ".join(packaged_text("book.txt").read_text().split())
    for asked in QUESTIONS:
        assert asked.sentence.lower() in book.lower() and asked.expected in asked.sentence
        assert asked.expected not in asked.prompt and asked.expected not in book[-20_000:]
    assert holds("it is rosamond.", "Rosamond") and not holds("Rosamonds", "Rosamond")


def test_files_below_the_current_folder_are_named_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert nearby(tmp_path / "a" / "b") == "a/b" and nearby(tmp_path.parent) == str(tmp_path.parent)


def test_perplexity_stands_beside_every_control(ran):
    assert set(ran[0]["perplexity"]) == {"hybrid", "teacher", "window + LoRA"}


def test_limits_are_said_and_reported(ran):
    result, said, out = ran
    text = "\n".join(said)
    assert "what it cannot do" in text and "It finds no fact far back." in text and "against the teacher" in text
    page = (out / "report.html").read_text()
    assert "It finds no fact far back." in page and result["commands"][0] in page
    kinds = {json.loads(path.read_text()).get("kind") for path in out.glob("*.json")}
    assert kinds == {"plan", "eval", "reading", "text", "questions", "limits", "commands"}


def test_without_an_adapter_it_says_so(base, tmp_path, monkeypatch):
    monkeypatch.setattr("anchorlm.quickstart.packaged_adapter", lambda *_: None)
    monkeypatch.setattr("anchorlm.quickstart.WINDOW", 8)
    said = []
    result = quickstart(Settings(out=str(tmp_path), base=str(base), **SMALL), said.append)
    assert "untrained" in "\n".join(said)
    assert result["commands"][0].startswith("anchorlm convert")


def test_the_packaged_hybrid_stands_beside_the_packaged_adapter(base, tmp_path, monkeypatch):
    folders = {}
    for name in (ADAPTER, OTHER[0]):
        folders[name] = save(make(base, "anchor"), tmp_path / name, char_tokenizer(), {"training": {"steps": 3}})
    monkeypatch.setattr("anchorlm.quickstart.packaged_adapter", lambda name=ADAPTER: folders[name])
    result = quickstart(Settings(out=str(tmp_path / "out"), base=str(base), **SMALL), [].append)
    assert [*result["perplexity"]] == ["hybrid", "teacher", "window", OTHER[1]]
    assert result["commands"][1].endswith(f"--vs {folders[OTHER[0]]}")


def test_the_packaged_texts_are_long_enough():
    assert len(packaged_text("held_out.txt").read_text()) > 60_000
    assert len(packaged_text("book.txt").read_text()) > 130_000
