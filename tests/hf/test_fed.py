"""Layers fed given inputs: each output is that of the layer's attention alone, memory included."""

import pytest
import torch

import builders
from anchorlm.hf.fed import fed_outputs
from anchorlm.hf.model import Captures
from anchorlm.plan import Plan
from builders import assert_near

SHARED = {"write": 0, "read": [0, 1, 3], "chunk": 6}
PLAN = Plan.from_dict({"attention": {"kind": "window", "window": 6}, "slots": {"s": SHARED}}, 4)


def captured(model, ids, **options):
    captures = Captures()
    model.hidden(ids, captures=captures, **options)
    return captures


def test_fed_its_own_inputs_a_model_gives_its_own_outputs():
    model, ids = builders.hybrid(plan=PLAN), builders.tokens(2, 30)
    own = captured(model, ids)
    for index, output in fed_outputs(model, own.inputs).items():
        assert_near(output, own.outputs[index], 1e-10)


def test_fed_the_teachers_inputs_a_full_plan_gives_the_teachers_outputs():
    model, ids = builders.hybrid(plan=PLAN), builders.tokens(2, 30)
    teacher = captured(model, ids, plan=model.plan.teacher())
    for index, output in fed_outputs(model, teacher.inputs, plan=model.plan.teacher()).items():
        assert_near(output, teacher.outputs[index], 1e-10)


def test_no_error_reaches_another_layer():
    """Layer 2 reads no slot, so what it is fed alone decides its output; layer 1 reads what layer 0 wrote."""
    model, ids = builders.hybrid(plan=PLAN), builders.tokens(2, 30)
    inputs = captured(model, ids, plan=model.plan.teacher()).inputs
    before = fed_outputs(model, inputs)
    changed = fed_outputs(model, inputs | {0: torch.randn_like(inputs[0])})
    assert torch.equal(before[2], changed[2])
    assert not torch.equal(before[0], changed[0]) and not torch.equal(before[1], changed[1])


@pytest.mark.parametrize("checkpoint", [False, True])
def test_padding_and_packing_change_nothing_and_gradients_reach_the_writer(checkpoint):
    model = builders.hybrid(plan=PLAN)
    a, b = (torch.randn(4, 1, n, model.shape.hidden, dtype=torch.float64) for n in (30, 17))
    starts = torch.zeros(1, 47, dtype=torch.bool)
    starts[0, [0, 30]] = True
    packed = fed_outputs(model, dict(enumerate(torch.cat([a, b], 2))), document_starts=starts, checkpoint=checkpoint)
    alone = [fed_outputs(model, dict(enumerate(part)), checkpoint=checkpoint) for part in (a, b)]
    padded = torch.nn.functional.pad(b, (0, 0, 5, 3), value=float("nan"))
    mask = torch.nn.functional.pad(torch.ones(1, 17), (5, 3)).bool()
    masked = fed_outputs(model, dict(enumerate(padded)), mask, checkpoint=checkpoint)
    for index in range(4):
        assert_near(packed[index][:, :30], alone[0][index], 1e-10)
        assert_near(packed[index][:, 30:], alone[1][index], 1e-10)
        assert_near(masked[index][mask], alone[1][index][0], 1e-10)
    packed[3].square().sum().backward()
    writer = model.backbone.model.layers[0].self_attn.writers["s"]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in writer.memory.parameters())
