"""Sharded layers: a slot's state must cross layers even where a wrapper rebuilds what it is given."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import builders
from anchorlm.hf.model import Captures
from anchorlm.plan import Plan
from builders import assert_near

SHARED = {"write": 0, "read": [0, 1, 3], "chunk": 6}
PLAN = Plan.from_dict({"attention": {"kind": "window", "window": 6}, "slots": {"s": SHARED}}, 4)


@pytest.fixture
def mesh(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def captured(model, ids):
    """The attention outputs of all layers, taken while gradients are wanted."""
    captures = Captures()
    model(ids, captures=captures)
    return torch.cat([captures.outputs[layer] for layer in range(4)])


@pytest.mark.skipif(os.name == "nt", reason="gloo over files is not there on Windows")
@pytest.mark.parametrize("checkpoint", [False, True])
def test_fully_sharded_layers_give_the_same_loss_and_gradients(mesh, checkpoint):
    model, ids = builders.hybrid(plan=PLAN, dtype=torch.float32).train(), builders.tokens(2, 30)
    loss = model(ids, labels=ids).loss
    loss.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    expected_outputs = captured(model, ids)
    for layer in model.backbone.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded = model(ids, labels=ids, checkpoint=checkpoint).loss
    sharded.backward()
    assert_near(sharded, loss, 1e-6)
    for name, parameter in model.named_parameters():
        assert_near(parameter.grad.full_tensor(), expected[name], 1e-5, name)
    assert_near(captured(model, ids), expected_outputs, 1e-5)
