"""Layers run by themselves give what the whole model gives, bit for bit."""

import pytest
import torch

from anchorlm.hf.layers import attention_as, run_layers
from anchorlm.plan import Plan, Reach
from builders import hybrid, tokens

LENGTH = 40
WINDOW = Reach("window", 7, 2)


def plans(depth):
    mixed = tuple(WINDOW if layer % 2 else Reach() for layer in range(depth))
    return [Plan((Reach(),) * depth), Plan((WINDOW,) * depth), Plan(mixed)]


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2-window", "qwen3"])
@torch.inference_mode()
def test_a_suffix_equals_the_whole_run_for_every_first_layer(family):
    model = hybrid(family, "swa", dtype=torch.float32)
    ids = tokens(2, LENGTH)
    for plan in plans(4):
        whole, record = model.hidden(ids, plan=plan), {}
        assert torch.equal(run_layers(model, model.get_input_embeddings()(ids), plan, record=record), whole)
        assert sorted(record) == list(range(5))
        for first in range(5):
            assert torch.equal(run_layers(model, record[first], plan, first), whole)


@torch.inference_mode()
def test_a_part_ends_where_the_rest_begins():
    model, plan = hybrid(plan="swa"), plans(4)[1]
    record = {}
    run_layers(model, model.get_input_embeddings()(tokens(1, LENGTH)), plan, record=record)
    attended = {}
    assert torch.equal(run_layers(model, record[1], plan, first=1, last=3, attended=attended), record[3])
    assert sorted(attended) == [1, 2]


@torch.inference_mode()
def test_attention_can_be_replaced_and_comes_back():
    model, plan = hybrid(plan="swa"), plans(4)[0]
    ids, seen = tokens(1, LENGTH), {}
    whole = model.hidden(ids, plan=plan)

    def watch(x, own):
        seen["x"], seen["own"] = x, own
        return torch.zeros_like(own)

    x, record, attended = model.get_input_embeddings()(ids), {}, {}
    run_layers(model, x, plan, record=record, attended=attended)
    with attention_as(model, {2: watch}):
        changed = run_layers(model, x, plan)
    layer = model.backbone.model.layers[2]
    assert torch.equal(seen["own"], attended[2]) and torch.equal(seen["x"], layer.input_layernorm(record[2]))
    after = record[2] + layer.mlp(layer.post_attention_layernorm(record[2]))  # no attention: only the residual is left
    assert torch.allclose(changed, run_layers(model, after, plan, first=3), atol=1e-12)
    assert not torch.allclose(changed, whole) and torch.equal(run_layers(model, x, plan), whole)
