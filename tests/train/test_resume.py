"""A run that was killed goes on as if nothing had happened, and refuses to go on as another run."""

import hashlib
import io
import json
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
from safetensors.torch import load_file, save_file
from tiny import PLAN, tiny_hybrid, tiny_recipe, tiny_store

from anchorlm.core import UserError, alone
from anchorlm.plan import ModelShape
from anchorlm.results.plans import plan_from
from anchorlm.settings import load_recipe, recipe_names
from anchorlm.train import train
from anchorlm.train.checkpoint import checkpoints
from anchorlm.train.folder import check_identity
from anchorlm.train.sinks import read_metrics
from small import char_tokenizer, tiny_llama

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


OWN_PLANS = {
    "kept": {"slots": {"k1": {"rule": "kept", "write": 1, "chunk": 8, "options": {"tokens": 8}}}},
    "liger": {"preset": "liger"},
    "lizard": {"preset": "lizard"},
    "lolcats": {"preset": "lolcats"},
    "titan-llama": {"preset": "titan-llama", "converted": 2, "window": 8},
}


def short_recipe(name):
    """The packaged recipe with two steps in each of its stages, a checkpoint after each, and the plan it is for."""
    recipe = load_recipe(name)
    steps = [f"{stage}.steps={min(2, getattr(recipe, stage).steps)}" for stage in ("stage1", "stage2")]
    rest = ["data.length=64", "data.accumulate=1", "stage1.warmup=0", "stage2.warmup=0", "data.mix.recall=0"]
    shape = ModelShape.from_config(tiny_llama(layers=4).config)
    plan = plan_from(OWN_PLANS[name], shape, 8, 2).to_dict() if name in OWN_PLANS else PLAN
    return load_recipe(name, [*steps, *rest, "save_every=1", "keep_last=9"]), plan


def trained(out, recipe, plan):
    """All weights after the run."""
    model = tiny_hybrid(plan)
    train(model, char_tokenizer(), recipe, tiny_store(), out, console=Console(file=io.StringIO()))
    return model.state_dict()


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_ends_with_the_same_weights_wherever_it_was_stopped(tmp_path, name):
    """Also of memory that the last stage leaves alone: an earlier one trained it."""
    recipe, plan = short_recipe(name)
    straight = trained(tmp_path / "run", recipe, plan)
    steps = recipe.stage1.steps + recipe.stage2.steps
    for step in range(1, steps):
        out = tmp_path / f"from-{step}"
        trained(out, recipe, plan)
        (out / "config.json").unlink()
        for path in checkpoints(out / "checkpoints")[: steps - step]:
            shutil.rmtree(path)
        resumed = trained(out, recipe, plan)
        assert losses(out) == losses(tmp_path / "run")
        assert [name for name in straight if not torch.equal(straight[name], resumed[name])] == []


@pytest.mark.parametrize(("steps", "goes_on"), [(0, True), (2, False)])
def test_a_checkpoint_without_the_memory_that_is_left_alone(tmp_path, steps, goes_on):
    """As once written: it does where nothing was trained before, and no longer where an earlier stage was."""
    recipe = tiny_recipe(stage1={"steps": steps}, stage2={"train_memory": False}, save_every=1)
    go(tmp_path / "run", recipe)
    (tmp_path / "run" / "config.json").unlink()
    newest = checkpoints(tmp_path / "run" / "checkpoints")[0]
    weights = newest / "weights.safetensors"
    save_file({name: value for name, value in load_file(weights).items() if ".lora_" in name}, weights)
    state = json.loads((newest / "state.json").read_text())
    state["sizes"]["weights.safetensors"] = weights.stat().st_size
    (newest / "state.json").write_text(json.dumps(state))
    if goes_on:
        assert "resuming at step 3" in go(tmp_path / "run", recipe)
    else:
        with pytest.raises(UserError, match="holds other weights than this run trains"):
            go(tmp_path / "run", recipe)


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


def test_two_runs_do_not_write_one_folder(tmp_path):
    with alone(tmp_path / "run"), pytest.raises(UserError, match="is being written by another run; wait for it"):
        go(tmp_path / "run")
    assert not (tmp_path / "run").exists()
