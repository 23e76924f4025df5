"""What readers are answered, seen from outside, is what they use; exact tokens can be read without the window."""

import pytest
import torch
from torch.nn import functional as F

from anchorlm.hf.branches import answers_seen, window_unseen
from anchorlm.hf.layers import run_layers
from anchorlm.plan import Plan, Reach
from builders import assert_near, hybrid, tokens

LENGTH = 41


def seen(model, ids):
    found = {}

    def see(layer, slot, answers):
        found[layer, slot] = answers

    with torch.inference_mode(), answers_seen(model, see):
        model.hidden(ids)
    return found


def kept_model():
    slot = {"rule": "kept", "write": 1, "chunk": 4, "options": {"tokens": 5}}
    plan = {"attention": {"kind": "window", "window": 6, "sinks": 2}, "slots": {"k": slot}}
    return hybrid(plan=Plan.from_dict(plan, 3), layers=3)


@torch.inference_mode()
def test_answers_mapped_and_gated_are_the_memory_branch():
    model, ids = hybrid(layers=6), tokens(1, LENGTH)
    found, attended, traces = seen(model, ids), {}, {}
    assert sorted(found) == [(0, "head"), (1, "head"), (2, "tail"), (3, "tail"), (4, "tail"), (5, "tail")]
    x = model.get_input_embeddings()(ids)
    run_layers(model, x, model.plan, attended=attended)
    entering, alone = {}, {}
    run_layers(model, x, model.plan, record=entering, traces=traces)
    run_layers(model, entering[1], model.plan.without_slots(), first=1, last=2, attended=alone)
    reader = model.backbone.model.layers[1].self_attn.readers["head"]
    inputs = model.backbone.model.layers[1].input_layernorm(entering[1])
    answers = found[1, "head"]
    gate = F.silu(inputs @ reader.gate_weight.T + reader.gate_bias).transpose(1, 2)[..., None]
    branch = (gate * reader.map(answers)).transpose(1, 2).flatten(2)
    assert_near(attended[1] - alone[1], branch)
    assert not answers[:, :, :6].any() and answers[:, :, 6:].any()


@torch.inference_mode()
def test_kept_tokens_without_the_window():
    model, ids, attended, alone = kept_model(), tokens(1, LENGTH), {}, {}
    answers = seen(model, ids)[1, "k"]
    x = model.get_input_embeddings()(ids)
    run_layers(model, x, model.plan, attended=attended)
    with window_unseen(model, [1]):
        run_layers(model, x, model.plan, attended=alone)
    assert_near(alone[1], answers.transpose(1, 2).flatten(2), 1e-12)
    assert not alone[1][:, :6].any() and alone[1][:, -1].any()
    assert torch.equal(alone[0], attended[0])
    again = {}
    run_layers(model, x, model.plan, attended=again)
    assert torch.equal(again[1], attended[1])


@torch.inference_mode()
def test_a_suffix_with_slots_equals_the_whole_run_for_every_first_layer():
    for model in (hybrid(layers=6), kept_model()):
        ids, record, traces = tokens(2, LENGTH), {}, {}
        whole = model.hidden(ids)
        x = model.get_input_embeddings()(ids)
        assert torch.equal(run_layers(model, x, model.plan, record=record, traces=traces), whole)
        assert sorted(traces) == sorted(model.plan.slots)
        for first in range(len(model.plan.layers)):
            assert torch.equal(run_layers(model, record[first], model.plan, first, traces=dict(traces)), whole)


def test_a_slot_written_below_needs_its_trace():
    model = hybrid(layers=6)
    with pytest.raises(ValueError, match="layer 1 reads slot 'head', which layer 0 wrote"):
        run_layers(model, torch.zeros(1, 3, 32, dtype=torch.float64), model.plan, first=1)


@torch.inference_mode()
def test_a_plan_says_that_a_window_gives_nothing():
    model, ids, attended = hybrid(layers=6), tokens(1, LENGTH), {}
    layers = tuple(Reach("none") if i == 3 else reach for i, reach in enumerate(model.plan.layers))
    without = Plan(layers).select_slots([])
    run_layers(model, model.get_input_embeddings()(ids), without, attended=attended)
    assert not attended[3].any() and attended[2].any()
