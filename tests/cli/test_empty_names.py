"""An empty name is no file and no folder: as a path it would be the folder one is in."""

import os

import pytest
import typer

from anchorlm.cli.__main__ import app
from anchorlm.cli.options import NAMED
from anchorlm.core import UserError
from anchorlm.data import find_files

NEEDED = {
    "convert": ("base", "-o", "out"), "place": ("base",), "eval": ("dir",), "analyze": ("dir",), "generate": ("dir",),
    "compare": ("base",), "merge": ("dir", "-o", "out"), "train": ("dir",), "report": ("run",), "results": ("core",),
    "reproduce": ("figure5",), "info": ("dir",),
}  # fmt: skip
FLAGS = [
    (verb, param.opts[0]) for verb, command in typer.main.get_command(app).commands.items() for param in command.params
    if param.metavar in NAMED
]  # fmt: skip


def test_every_file_and_folder_is_looked_at():
    flags = [flag for _, flag in FLAGS]
    assert flags.count("--out") == 12 and flags.count("--data") == 7 and flags.count("--report") == 2
    assert {"--train", "--validation", "--eval-data", "--rules", "--records", "--base", "--file", "--weights"} < {
        *flags
    }


@pytest.mark.parametrize("verb, flag", FLAGS, ids=[" ".join(row) for row in FLAGS])
def test_an_empty_name_is_refused_and_nothing_is_written(call, tmp_path, monkeypatch, verb, flag):
    monkeypatch.chdir(tmp_path)
    for given in ([flag, ""], [f"{flag}="]) if flag.startswith("-") else ([""],):
        needed = NEEDED.get(verb, ()) if flag.startswith("-") else NEEDED.get(verb, ())[1:]
        code, shown, error = call(verb, *given, *needed) if needed[:1] == ("-o",) else call(verb, *needed, *given)
        assert code == 2 and shown == "" and error.count("\n") == 1, error
        assert " is empty; name " in error and (flag in error or not flag.startswith("-"))
        assert os.listdir(tmp_path) == []


def test_one_empty_name_of_several(call):
    assert "--data is empty; name a text file" in call("eval", "dir", "--data", "a.txt", "")[2]
    with pytest.raises(UserError, match="no data: name at least one"):
        find_files(["a.txt", ""])
