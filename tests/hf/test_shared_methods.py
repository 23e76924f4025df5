"""Published methods whose states several layers read: the special case of one reader, and recomputed activations."""

import pytest
import torch

import builders
from anchorlm.presets import build
from builders import assert_near, tokens
from probes import logits_of

PLANS = {
    "lolcats": {"window": 5, "options": {"width": 5}},
    "liger": {"window": 5},
    "lizard": {"window": 5},
    "titan-llama": {"segment": 5, "options": {"width": 5}},
}


def model_of(name, **values):
    plan = build(name, builders.shape("llama", 3), **PLANS[name], **values)
    return builders.hybrid("llama", plan, layers=3)


@pytest.mark.parametrize("name", PLANS)
def test_groups_of_one_layer_are_private_states(name):
    private, single = model_of(name), model_of(name, groups=[[0], [1], [2]], map="none")
    weights = private.state_dict()
    single.load_state_dict({key.replace("ers.l", "ers.g"): value for key, value in weights.items()})
    assert_near(logits_of(single, tokens(2, 23)), logits_of(private, tokens(2, 23)), 1e-12)


@pytest.mark.parametrize("name", PLANS)
def test_readers_above_see_what_the_writer_wrote_and_teach_it(name):
    """Without its memory the first layer still writes for the others, and their loss reaches its slow weights."""
    model, ids = model_of(name, groups=[[0, 1, 2]]), tokens(2, 23)
    whole = logits_of(model, ids)
    for layer in (1, 2):
        reader = model.backbone.model.layers[layer].self_attn.readers["g0"]
        change = reader.map.turn.data
        reader.map.turn.data = change + 0.3 * builders.normal(*change.shape)
        assert not torch.allclose(logits_of(model, ids), whole)
        reader.map.turn.data = change
    own, found = model.memory_parameters(), []
    for checkpoint in (False, True):
        loss = model.backbone.lm_head(model.hidden(ids, checkpoint=checkpoint)).square().mean()
        found.append(torch.autograd.grad(loss, list(own.values())))
    for name, a, b in zip(own, *found, strict=True):
        assert bool(a.any()), name
        assert_near(a, b, 1e-12, name)
