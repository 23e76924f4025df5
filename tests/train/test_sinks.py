"""Figures of a run: whole lines only, one live line for people, nothing that is not installed."""

import io
import json
import os
import sys

import pytest
from rich.console import Console
from tiny import tiny_hybrid, tiny_recipe, tiny_store

from anchorlm.core import UserError
from anchorlm.train import train
from anchorlm.train.sinks import JsonLines, Progress, read_metrics
from small import char_tokenizer

RECORD = {"stage": "stage1", "step": 1, "losses": {"ce": 2.5}, "grad_norm": 1.0, "tokens_per_s": 300.4}


def test_lines_after_the_resumed_step_are_dropped_and_a_torn_one_too(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    sink = JsonLines(path, last_step=2)
    sink.write({"step": 3, "new": True})
    sink.close()
    assert read_metrics(path) == [{"step": 1}, {"step": 2}, {"step": 3, "new": True}]


def lines(terminal, count=25):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    sink = Progress(console, total=count)
    for step in range(1, count + 1):
        sink.write(RECORD | {"step": step})
    sink.write({"stage": "stage1", "step": count, "eval": {"ce": 2.25}})
    sink.close()
    return console.file.getvalue()


def test_a_pipe_gets_plain_lines_now_and_then():
    text = lines(terminal=False)
    assert text.splitlines() == [
        *(f"stage1  step {step}/25  ce 2.5000  grad 1  300 tokens/s" for step in (1, 10, 20, 25)),
        "stage1  step 25/25  evaluation  ce 2.2500",
    ]


def test_a_terminal_keeps_the_evaluations_only():
    assert "evaluation  ce 2.2500" in lines(terminal=True)


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_log_that_is_not_installed_is_named_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"{name}.*anchorlm\[log\]"):
        train(tiny_hybrid(), char_tokenizer(), tiny_recipe(log=[name]), tiny_store(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tensorboard_takes_every_figure(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    console = Console(file=io.StringIO())
    recipe = tiny_recipe(log=["tensorboard"], stage2={"steps": 0})
    train(tiny_hybrid(), char_tokenizer(), recipe, tiny_store(), tmp_path / "run", console=console)
    assert any((tmp_path / "run" / "tensorboard").iterdir())


class Fake:
    """Stands for trackio and wandb: they share these three calls."""

    def __init__(self):
        self.options, self.logged, self.finished, self.remote = None, [], 0, None

    def init(self, **options):
        print("a banner on stdout")
        self.options, self.remote = options, os.environ.get("TRACKIO_SPACE_ID")
        return self

    def log(self, figures, step):
        self.logged.append((step, figures))

    def finish(self):
        self.finished += 1


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_tracker_takes_every_figure_and_stays_on_this_machine(tmp_path, monkeypatch, capsys, name):
    fake = Fake()
    monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somewhere/else")
    recipe, console = tiny_recipe(log=[name], stage2={"steps": 0}), Console(file=io.StringIO())
    train(tiny_hybrid(), char_tokenizer(), recipe, tiny_store(), tmp_path / "run", console=console)
    assert fake.options["project"] == "anchorlm" and fake.options["name"] == "run"
    assert fake.remote is None if name == "trackio" else fake.options["mode"] == "offline"
    assert os.environ["TRACKIO_SPACE_ID"] == "somewhere/else"
    assert [step for step, _ in fake.logged] == [1, 2, 3] and fake.finished == 1
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [figures["losses/ce"] for _, figures in fake.logged] == [r["losses"]["ce"] for r in records]
    assert all(isinstance(value, float) for _, figures in fake.logged for value in figures.values())
    assert capsys.readouterr().out == ""


def test_records_are_plain_json(tmp_path):
    console = Console(file=io.StringIO())
    train(tiny_hybrid(), char_tokenizer(), tiny_recipe(eval_every=3), tiny_store(), tmp_path / "run", console=console,
          eval_data=tiny_store("others"))  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluations = [record["eval"] for record in records if "eval" in record]
    assert [sorted(figures) for figures in evaluations] == [
        ["ce", "ce_without_slots", "mse"],
        ["ce", "ce_without_slots"],
    ]
