"""A run that was killed goes on as if nothing had happened, and refuses to go on as another run."""

import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tiny import PLAN, tiny_hybrid, tiny_recipe, tiny_store

from anchorlm.core import UserError
from anchorlm.train import train
from anchorlm.train.checkpoint import checkpoints
from anchorlm.train.folder import check_identity
from anchorlm.train.sinks import read_metrics
from small import char_tokenizer

CHILD = """
import sys
from rich.console import Console
from small import char_tokenizer
from tiny import tiny_hybrid, tiny_recipe, tiny_store
from anchorlm.train import train
train(tiny_hybrid(), char_tokenizer(), tiny_recipe(), tiny_store(), sys.argv[1], console=Console(file=sys.stderr))
"""


def go(out, recipe=None, plan=PLAN, store=None, **options):
    console = Console(file=io.StringIO(), width=200)
    train(
        tiny_hybrid(plan),
        char_tokenizer(),
        recipe or tiny_recipe(),
        store or tiny_store(),
        out,
        console=console,
        **options,
    )
    return console.file.getvalue()


def final_hash(out):
    newest = checkpoints(Path(out) / "checkpoints")[0]
    assert newest.name == "step-00000006"
    files = [newest / "weights.safetensors", newest / "optimizer.safetensors"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def losses(out):
    return [(r["step"], r["losses"], r["grad_norm"]) for r in read_metrics(Path(out) / "metrics.jsonl")]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "run"
    go(out)
    return out


def kill_after(out, step):
    """Run in a child process and kill -9 it as soon as its metrics show `step`."""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent), *sys.path])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(out)], env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while len(read_metrics(out / "metrics.jsonl")) < step and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    _, errors = child.communicate()
    assert child.returncode in (0, -signal.SIGKILL), errors.decode()


def test_kill_and_resume_gives_the_same_losses_and_weights(tmp_path, straight):
    out = tmp_path / "run"
    kill_after(out, random.randint(1, 5))
    go(out)
    assert losses(out) == losses(straight)
    assert final_hash(out) == final_hash(straight)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_resume_from_each_checkpoint(tmp_path, straight, step):
    """In stage 1, at its end, and in stage 2."""
    out = tmp_path / "run"
    go(out, tiny_recipe(keep_last=9))
    (out / "config.json").unlink()
    for path in checkpoints(out / "checkpoints"):
        if path.name > f"step-{step:08d}":
            shutil.rmtree(path)
    assert f"resuming at step {step} of 6" in go(out)
    assert losses(out) == losses(straight)
    assert final_hash(out) == final_hash(straight)


def test_a_run_killed_while_its_model_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorlm.train.run.publish", lambda *paths: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "run")
    monkeypatch.undo()
    go(tmp_path / "run")
    assert (tmp_path / "run" / "config.json").is_file() and not (tmp_path / "run" / ".model").exists()


def test_what_kills_left_of_files_is_gone_when_the_run_goes_on(tmp_path):
    left = [".config.yaml.lxuenuru", ".env.json.abcd1234", ".metrics.jsonl.________", ".trainable-stage2.json.zzzzzzzz"]
    mine = [".notes.txt.abcd1234"]
    (tmp_path / "run").mkdir()
    for name in left + mine:
        (tmp_path / "run" / name).write_text("half")
        os.utime(tmp_path / "run" / name, (1, 1))
    go(tmp_path / "run")
    assert {item.name for item in (tmp_path / "run").iterdir() if item.name.startswith(".")} == {*mine}


def test_a_finished_run_is_left_alone(tmp_path):
    go(tmp_path / "run")
    before = (tmp_path / "run" / "config.json").stat().st_mtime_ns, final_hash(tmp_path / "run")
    go(tmp_path / "run")
    assert before == ((tmp_path / "run" / "config.json").stat().st_mtime_ns, final_hash(tmp_path / "run"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe": tiny_recipe(stage1={"lr": 2e-3})}, ["recipe.stage1.lr", "0.001", "0.002"]),
        ({"plan": {**PLAN, "attention": {"kind": "window", "window": 9}}}, ["plan.attention.window", "8", "9"]),
        ({"store": tiny_store("another text")}, ["data.texts"]),
    ],
)
def test_another_run_is_refused(straight, changes, words):
    with pytest.raises(UserError) as caught:
        go(straight, **changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_in_another_dtype_are_another_run(straight):
    """With `dtype: auto` the recipe says nothing of it: what counts is what the model was loaded in."""
    model = tiny_hybrid(PLAN)
    model.backbone.to(torch.bfloat16)
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(UserError, match="dtype was 'float(32|64)', now 'bfloat16'"):
        train(model, char_tokenizer(), tiny_recipe(), tiny_store(), straight, console=console)
    check_identity({"recipe": {}}, {"recipe": {}, "dtype": "bfloat16"}, straight)


def test_saving_more_often_is_no_other_run(tmp_path):
    go(tmp_path / "run")
    go(tmp_path / "run", tiny_recipe(save_every=1))


def test_a_damaged_checkpoint_is_passed_over(tmp_path, straight):
    out = tmp_path / "run"
    go(out)
    newest = checkpoints(out / "checkpoints")[0]
    weights = newest / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    (out / "config.json").unlink()
    text = go(out)
    assert "is damaged" in text and "resuming at step 4" in text
    assert losses(out) == losses(straight) and final_hash(out) == final_hash(straight)


def test_resume_never_and_a_wrong_path(straight):
    with pytest.raises(UserError, match="not empty"):
        go(straight, resume="never")
    with pytest.raises(UserError, match="not a checkpoint"):
        go(straight, resume="step-3")
