"""Every mistake is one line, told before anything is written."""

import pytest
import yaml

from anchorlm.cli import __main__ as program
from anchorlm.convert.save import save
from anchorlm.reproduce import ITEMS
from hybrids import make
from reproduced import SCALE
from small import char_tokenizer

MISTAKES = [
    (("figure33",), "'figure3'"),
    ((), "reproduce needs an item"),
    (("table5", "--scale", "{home}/measures.yaml"), "scale measures.ruler: eval option 'lenghts' is unknown"),
    (("figure3", "--scale", "smal"), "'small'"),
    (("figure3", "--set", "stage1=3"), "'stage1=3': stage1 is a group of settings; set one of"),
    (("figure3", "--set", "stage1.stepz=3"), "'steps'"),
    (("figure3", "--scale", "{home}/bad.yaml"), "'figure3'"),
    (("figure3", "--scale", "{home}/worse.yaml"), "'window'"),
    (("figure3", "--train", "{home}/none.txt"), "none.txt"),
    (("figure3", "--base", "{home}/nothing"), "nothing"),
    (("figure3", "--context", "90000", "--train", "{home}/train.txt"), "needs at least 90000"),
    (("figure3",), "give --train TEXT"),
    *(
        ((item, "--train", "{home}/train.txt", "--data", "{home}/empty.txt"), "empty.txt is empty")
        for item in ("all", "table1", "table2", "table5", "figure1", "figure3", "figure6")
    ),
    *(
        ((item, "--train", "{home}/train.txt", "--data", "{home}/short.txt"), "needs")
        for item in ("table2", "figure10")
    ),
    *(
        ((item, "--train", "{home}/train.txt", "--base", "{home}/hybrid"), "is a converted model already")
        for item in ("table2", "table3", "figure3", "figure5")
    ),
    *(((item, "--base", "{home}/nothing"), "nothing' does not exist") for item in ("table3", "table4", "figure5")),
    (("table2", "--context", "90000", "--train", "{home}/train.txt"), "needs at least 90000"),
    (("table1", "--scale", "{home}/far.yaml", "--train", "{home}/train.txt"), "has layers 0 to 3"),
]


@pytest.mark.parametrize("arguments, expected", MISTAKES, ids=[" ".join(a) or "none" for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_nothing_is_written(home, tmp_path, capsys, arguments, expected):
    base = {**SCALE, "base": str(home / "base")}
    (home / "bad.yaml").write_text(yaml.safe_dump({**base, "tables": {"figure33": {}}}))
    (home / "worse.yaml").write_text(yaml.safe_dump({**base, "windoww": 3}))
    measures = SCALE["measures"] | {"ruler": {"lenghts": [560]}}
    (home / "measures.yaml").write_text(yaml.safe_dump({**base, "measures": measures}))
    (home / "far.yaml").write_text(yaml.safe_dump({**base, "measured": [9]}))
    (home / "empty.txt").write_text("")
    (home / "short.txt").write_text("Few words.")
    if not (home / "hybrid").exists():
        save(make(home / "base", "anchor"), home / "hybrid", char_tokenizer())
    line = [argument.format(home=home) for argument in arguments]
    scale = [] if "--scale" in line else ["--scale", str(home / "tiny.yaml")]
    given = [
        *line,
        *scale,
        *([] if "--data" in line else ["--data", str(home / "test.txt")]),
        "-o",
        str(tmp_path / "o"),
    ]
    assert program.run(["reproduce", *given]) == 2
    shown = capsys.readouterr().err.rstrip("\n")
    assert expected in shown and shown.startswith("error: ") and "\n" not in shown, shown
    assert not (tmp_path / "o").exists()


def test_no_data_is_a_mistake(home, tmp_path, capsys):
    assert program.run(["reproduce", "all", "--scale", str(home / "tiny.yaml"), "-o", str(tmp_path / "o")]) == 2
    assert "table1 needs --data" in capsys.readouterr().err


@pytest.mark.parametrize("item", [name for name, item in ITEMS.items() if item.rows])
def test_where_nothing_is_trained_and_may_be_nothing_is_written(home, tmp_path, capsys, item):
    given = ["--scale", str(home / "tiny.yaml"), "--data", str(home / "test.txt"), "--no-train"]
    assert program.run(["reproduce", item, *given, "-o", str(tmp_path / "o")]) == 2
    assert "error: rows that are not trained: " in capsys.readouterr().err and not (tmp_path / "o").exists()
