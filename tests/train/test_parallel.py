"""Two processes train as one with twice the batch, whole or sharded; only the first writes; any number resumes."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from test_resume import go, losses
from tiny import PLAN, tiny_hybrid, tiny_recipe, tiny_store

from anchorlm.convert.load import load
from anchorlm.core import UserError
from anchorlm.train import train
from anchorlm.train.checkpoint import checkpoints
from anchorlm.train.parallel import ALONE, World, check_shard
from anchorlm.train.sinks import read_metrics
from small import char_tokenizer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="gloo is not there on Windows")
OPTIONS = {
    "data": {"length": 48, "batch": 2, "packing": "documents"},
    "stage1": {"cross_window_weight": 3.0, "window_dropout": 0.4, "w_kl": 0.3},
    "stage2": {"cross_window_weight": 3.0, "window_dropout": 0.4},
}
CHILD = """
import json, sys
import torch
torch.set_num_threads(1)
from tiny import tiny_hybrid, tiny_recipe, tiny_store
from anchorlm.train import train
from small import char_tokenizer
model, recipe = tiny_hybrid(), tiny_recipe(**json.loads(sys.argv[2]))
model.config.base = "a base" if recipe.shard and recipe.checkpoint else None
train(model, char_tokenizer(), recipe, tiny_store(), sys.argv[1])
"""


def together(out, options, processes=2, code=CHILD):
    """The run in several processes, as torchrun starts them; what each printed."""
    tests, path = Path(__file__).parent, os.environ.get("PYTHONPATH", "")
    (out.parent / "child.py").write_text(code)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent), path]), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone"]
    logs = ["--redirects", "3", "--log-dir", str(out.parent / "logs")]
    arguments = [str(out.parent / "child.py"), str(out), json.dumps(options)]
    done = subprocess.run(
        [*line, *logs, *arguments], env=env, capture_output=True, text=True, timeout=550
    )  # seconds; a busy machine needs minutes to import torch three times
    said = {(f.parent.name, f.name): f.read_text() for f in (out.parent / "logs").rglob("std*.log")}
    assert done.returncode == 0, done.stderr + "".join(said.values())
    return said


def halved(options, **more):
    """The same rows a step for two processes."""
    return {**options, **more, "data": {**options["data"], "batch": options["data"]["batch"] // 2}}


def weights(out):
    return load_file(checkpoints(out / "checkpoints")[0] / "weights.safetensors")


def assert_same_run(found, wanted, rel=1e-4):
    for a, b in zip(losses(found), losses(wanted), strict=True):
        assert a[0] == b[0] and a[1] == pytest.approx(b[1], rel=rel) and a[2] == pytest.approx(b[2], rel=10 * rel)
    one, other = weights(found), weights(wanted)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-3, atol=2e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shard": True, "checkpoint": True}], ids=["whole", "sharded"])
def test_two_processes_give_the_losses_and_weights_of_one(tmp_path, options):
    go(tmp_path / "one", tiny_recipe(**OPTIONS))
    (tmp_path / "pair").mkdir()
    said = together(tmp_path / "pair" / "two", halved(OPTIONS, **options))
    assert_same_run(tmp_path / "pair" / "two", tmp_path / "one")
    tokens = [[r["tokens"] for r in read_metrics(tmp_path / name / "metrics.jsonl")] for name in ("one", "pair/two")]
    assert tokens[0] == tokens[1]
    assert [text for (rank, stream), text in said.items() if rank == "1" and stream == "stdout.log"] == [""]
    assert "trained 6 steps" in said["0", "stdout.log"]
    kind = "memory.safetensors" if options else "model.safetensors"  # one with a base of its own is saved apart from it
    assert (tmp_path / "pair" / "two" / kind).is_file()


@pytest.mark.slow
def test_either_number_of_processes_goes_on_from_the_other(tmp_path):
    go(tmp_path / "one", tiny_recipe(**OPTIONS, keep_last=9))
    two = tmp_path / "pair" / "two"
    shutil.copytree(tmp_path / "one", two)
    cut_back(two, 4)
    together(two, halved(OPTIONS, keep_last=9, shard=True))
    assert_same_run(two, tmp_path / "one")
    cut_back(two, 5)
    assert "resuming at step 4 of 6" in go(two, tiny_recipe(**OPTIONS, keep_last=9))
    assert_same_run(two, tmp_path / "one")
    loaded, _ = load(two, dtype="float32")
    with torch.no_grad():
        assert torch.isfinite(loaded(torch.arange(40)[None]).logits).all()


def cut_back(out, step):
    """As if the run had been stopped before this step's checkpoint."""
    (out / "config.json").unlink()
    for path in checkpoints(out / "checkpoints"):
        if path.name >= f"step-{step:08d}" and path.name != "step-00000004":
            shutil.rmtree(path)


def test_alone_everything_is_what_it_was():
    values = torch.tensor([1.0, 2.0])
    assert ALONE.sum(values) is values and ALONE.first and ALONE.share(lambda: 3) == 3
    parameter = torch.nn.Parameter(values)
    ALONE.add_gradients({"p": parameter})
    assert parameter.grad is None


@pytest.mark.parametrize(
    ("changes", "terms", "size", "words"),
    [
        ({}, {}, 1, "there is one process"),
        ({"stage1": {"mse_inputs": "teacher"}}, {}, 2, "stage1.mse_inputs is 'teacher'"),
        ({}, {"stage2": ["keep", "ce"]}, 2, "stage2.w_keep"),
        ({"data": {"batch": 2}, "stage1": {"window_dropout": 0.1}}, {"stage1": ["ce"]}, 2, "needs data.batch=1"),
    ],
)
def test_what_sharded_layers_cannot_do_is_said(changes, terms, size, words):
    with pytest.raises(UserError, match=words):
        check_shard(tiny_recipe(shard=True, **changes), terms, World(0, size))
    check_shard(tiny_recipe(**changes), terms, World(0, size))


def test_another_number_of_rows_a_step_is_another_run(tmp_path):
    go(tmp_path / "run")
    with pytest.raises(UserError, match=r"recipe.data.batch was 1, now 2"):
        train(tiny_hybrid(PLAN), char_tokenizer(), tiny_recipe(data={"batch": 2}), tiny_store(), tmp_path / "run",
              console=Console(file=io.StringIO()))  # fmt: skip
