"""What a run would train and measure, before it does."""

import re

import pytest

from anchorlm.cli import __main__ as program
from anchorlm.cli import show
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from anchorlm.reproduce import ITEMS, load_scale, outline, work
from anchorlm.reproduce.sizes import Measures
from anchorlm.settings import Recipe
from reproduced import job


def test_the_outline_names_each_row_once_and_what_is_trained(home, done, tmp_path, capsys):
    scale = load_scale(home / "tiny.yaml")
    found = outline("all", scale, job(home, tmp_path / "none"))
    assert [item["item"] for item in found["items"]] == list(ITEMS)
    assert found["mad"] == {"trainings": 2, "steps": 1} and found["seconds"] == pytest.approx(
        sum(item["training"] + item["measuring"] for item in found["items"])
    )
    idle = [item["item"] for item in found["items"] if not item["measuring"]]
    assert idle == ["figure5", "figure7", "figure11"], "the last one shares all it measures"
    assert len(found["rows"]) == 4 + 9 and not any(row["trained"] for row in found["rows"])
    assert found["tokens"] == 32 * (4 * 2 + 6 * 2 + 3 * 1) and found["seconds"] > 0
    after = outline("all", scale, job(home, done[0]))
    assert (
        all(item["kept"] for item in after["items"]) and after["tokens"] == after["seconds"] == len(after["rows"]) == 0
    )
    said = [line.removesuffix(": training") for line in done[2] if line.endswith(": training")]
    assert sorted(said) == sorted(row["row"] for row in found["rows"]), "items train what they name"
    given = ["--scale", str(home / "tiny.yaml"), "--dry-run", "-o", str(tmp_path / "none")]
    assert program.run(["reproduce", "table2", "figure9", *given]) == 0
    shown = capsys.readouterr().out
    assert "anchor-no-map" in shown and "small models" not in shown
    assert re.search(r"in all about \d+ (s|min) at this machine's present speed, 384 tokens", shown)
    assert not (tmp_path / "none").exists()


def test_every_measurement_has_a_cost():
    assert set(work.MEASURES) == set(Measures.model_fields)


def test_durations_are_said_in_words():
    shown = {0.3: "0 s", 99: "99 s", 100: "2 min", 3550: "59 min", 3590: "1 h 0 min", 4500: "1 h 15 min"}
    assert {seconds: show.span(seconds) for seconds in shown} == shown


def test_work_grows_with_what_is_asked():
    """Twice the pieces, documents, questions and steps are twice the work."""
    shape = ModelShape(30, 9, 3, 64, 576, 49152, 8192)
    scale = load_scale("small", limit=10)
    double = scale.model_copy(update={"limit": 20})
    assert work.shares(["table2"], double, shape)["table2"] == 2 * work.shares(["table2"], scale, shape)["table2"] > 0
    both = work.shares(["figure8", "figure11"], scale, shape)
    assert both["figure8"] > both["figure11"] == 0, "what two items share counts once"
    recipe, plan = Recipe(eval_every=0), build("anchor-f", shape, window=128)
    longer = recipe.model_copy(
        update={
            "stage1": recipe.stage1.model_copy(update={"steps": 2 * recipe.stage1.steps}),
            "stage2": recipe.stage2.model_copy(update={"steps": 2 * recipe.stage2.steps}),
        }
    )
    assert work.training(longer, plan) == 2 * work.training(recipe, plan) > 0
