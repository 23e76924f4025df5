"""Fast weights placed where a trained model misses them, and how far scores of layers agree."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anchorlm
from anchorlm.analyze import run_analysis
from anchorlm.analyze.knocked import agreement, agreement_notes, missed, read_knocked
from anchorlm.cli import __main__ as program
from anchorlm.core import UserError
from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from builders import shake_memory
from planted import LAYERS, LENGTH, PLANTED, planted, store
from small import char_tokenizer

QUICK = dict(window=8, sinks=2, budget="100KB", context=LENGTH, needles=False, steps=0, keep="slots")


def score(value, low, high):
    return {"value": value, "interval": [low, high], "targets": 9}


def result(scores, **changes):
    rows = [{"branch": "memory", "layer": layer, "change": {"beyond": one}} for layer, one in scores.items()]
    rows += [{"branch": "window", "layer": 0, "change": {"beyond": score(9, 8, 10)}}]
    return {"kind": "knockout", "texts": {"text": {"rows": rows}}} | changes


SCORES = {0: score(0.1, -0.1, 0.3), 1: score(0.2, 0.1, 0.3), 2: score(0.0, 0.0, 0.0), 3: score(0.5, 0.4, 0.6)}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "knockout.json"
    path.write_text(json.dumps(result(SCORES)))
    return path


def test_fast_weights_go_where_they_are_missed(file):
    assert missed(read_knocked(file, LAYERS)) == [3, 1]
    found = anchorlm.place(planted(), store(), **QUICK, knockout=str(file))
    assert {slot.read for slot in found.plan.slots.values()} == {(1,), (3,)}
    assert {row["layer"]: row["missed"] for row in found.layers} == SCORES
    assert not any("after training" in note for note in found.result["notes"])
    row = found.result["agreement"][0]
    assert row["scores"] == ["the window's cost", "the knock-out of fast weights"] and row["layers"] == LAYERS


def test_only_layers_that_are_to_be_tried_get_them(file):
    found = anchorlm.place(planted(), store(), **QUICK, knockout=str(file), layers="0-2")
    assert {slot.read for slot in found.plan.slots.values()} == {(1,)}


def test_other_kinds_stay_where_they_were(file):
    plans = [anchorlm.place(planted(), store(), **QUICK | more | {"rule": "kept", "kept": 6}).plan
             for more in ({}, {"knockout": str(file)})]  # fmt: skip
    assert plans[0] == plans[1] and list(plans[0].slots) == [f"l{PLANTED}"]


def test_what_analyze_writes_is_read(tmp_path):
    base = planted()
    plan = build("anchor-f", ModelShape.from_config(base.config), window=8, sinks=2)
    model = shake_memory(AnchorForCausalLM.from_backbone(base, plan)).eval()
    run_analysis(
        model, char_tokenizer(), "knockout", store(), out=tmp_path, context=64, documents=2, recall=0, control=False
    )
    assert set(read_knocked(tmp_path / "knockout.json", LAYERS)) == set(range(LAYERS))


@given(st.lists(st.integers(-3, 3), min_size=3, max_size=12))
def test_a_score_agrees_with_itself_and_not_with_its_opposite(values):
    one, other = dict(enumerate(values)), {layer: -value for layer, value in enumerate(values)}
    if len(set(values)) == 1:
        assert agreement({"a": one, "b": one}) == []
        return
    same, against = (agreement({"a": one, "b": two})[0] for two in (one, other))
    assert same["spearman"] == pytest.approx(1) and len(same["common"]) == same["first"]
    assert against["spearman"] == pytest.approx(-1)
    assert "+1.00" in agreement_notes([same])[0]


BROKEN = [
    (None, "does not exist"),
    ("{", "is not the result of"),
    ("[]", "is not the result of"),
    (json.dumps(result(SCORES, kind="ablation")), "is not the result of|has no memory branch"),
    (json.dumps(result({**SCORES, 4: SCORES[3]})), "names layer 4; the base has layers 0 to 3"),
    (json.dumps(result({"x": SCORES[3]})), "names layer x; the base has layers 0 to 3"),
    (json.dumps(result({})), "has no memory branch"),
    *(
        (json.dumps(result({0: wrong})), "is not the result of")
        for wrong in (None, 1, [], {}, {"value": 1}, {"value": "1", "interval": None}, {"value": 1, "interval": [1]},
                      {"value": 1, "interval": ["a", "b"]}, {"value": math.nan, "interval": None})
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "text, expected", BROKEN, ids=[f"{number} {expected}" for number, (_, expected) in enumerate(BROKEN)]
)
def test_a_wrong_file_is_told_before_anything_is_measured(tmp_path, text, expected):
    path = tmp_path / "knockout.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=expected):
        anchorlm.place(planted(), store(), **QUICK, knockout=str(path), out=tmp_path / "p.yaml")
    assert not (tmp_path / "p.yaml").exists()


def test_the_command_line_takes_it(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("word " * 2000)
    planted().save_pretrained(tmp_path / "base")
    char_tokenizer().save_pretrained(tmp_path / "base")
    arguments = [
        "place",
        str(tmp_path / "base"),
        "--data",
        str(tmp_path / "t.txt"),
        "--knockout",
        str(tmp_path / "none"),
    ]
    assert program.run([*arguments, "--context", "256", "-o", str(tmp_path / "p.yaml")]) == 2
    assert "does not exist; `anchorlm analyze DIR --what knockout -o RUN` writes it" in capsys.readouterr().err
