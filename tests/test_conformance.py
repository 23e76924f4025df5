"""The conformance suite over every preset and every rule, on tiny Llama and Qwen3 shapes, in float64.

C1 prefix, C2 step, C3 split, C4 gradient, C5 causality, C6 padding, C7 packing, C8 bytes, C9 identity, C10 parameters,
C11 cache, C12 drift, C13 learning, C14 generation. Most are the checks that a user's own rule is put to.
"""

from functools import cache

import pytest
import torch
from torch.nn import functional as F

import builders
from anchorlm.conformance import CHECKS
from anchorlm.hf import AnchorForCausalLM
from anchorlm.presets import build
from builders import assert_near, assert_same_state, tokens
from probes import logits_of, read_by

FAMILIES, WINDOW, LENGTH = ("llama", "qwen3"), 5, 23
HEDGEHOG, BOTH = {"width": 5}, [[0, 1]]
PLANS = {
    "swa": ("swa", {"sinks": 2}),
    "anchor": ("anchor", {"sinks": 2}),
    "anchor-hybrid": ("anchor-hybrid", {"sinks": 2}),
    "linear": ("anchor-f", {"rule": "linear"}),
    "delta": ("anchor-f", {"rule": "delta"}),
    "kept": ("anchor-f", {"rule": "kept", "options": {"tokens": 4}}),
    "kept-follow": ("anchor-f", {"rule": "kept", "options": {"tokens": 4, "follow": 0.1}}),
    "kept-one-head": ("anchor-f", {"rule": "kept", "heads": [1], "options": {"tokens": 4}}),
    "lolcats": ("lolcats", {"options": HEDGEHOG}),
    "lolcats-terrace": ("lolcats", {"kind": "terrace", "options": HEDGEHOG}),
    "liger": ("liger", {}),
    "liger-hgrn2": ("liger", {"options": {"variant": "hgrn2"}}),
    "liger-scalar": ("liger", {"options": {"variant": "scalar"}}),
    "liger-gsa": ("liger", {"rule": "gsa", "options": {"slots": 4}}),
    "liger-h": ("liger", {"full_every": 2}),
    "lizard": ("lizard", {}),
    "lizard-hybrid": ("lizard", {"full_every": 2}),
    "titan-llama": ("titan-llama", {"segment": WINDOW, "options": {"width": 5}}),
    "titan-llama-window": ("titan-llama", {"segment": 4, "converted": 1, "later": "window", "sinks": 2}),
    "titan-llama-group": ("titan-llama", {"segment": WINDOW, "options": {"width": 5, "group": 2}}),
    "titan-llama-shared": ("titan-llama", {"segment": WINDOW, "groups": BOTH, "options": {"width": 5}}),
    "lolcats-shared": ("lolcats", {"groups": BOTH, "options": HEDGEHOG}),
    "lolcats-terrace-shared": ("lolcats", {"kind": "terrace", "groups": BOTH, "options": HEDGEHOG}),
    "liger-shared": ("liger", {"groups": BOTH}),
    "liger-hgrn2-shared": ("liger", {"groups": BOTH, "map": "expm", "options": {"variant": "hgrn2"}}),
    "liger-scalar-shared": ("liger", {"groups": BOTH, "map": "dense", "options": {"variant": "scalar"}}),
    "liger-gsa-shared": ("liger", {"rule": "gsa", "groups": BOTH, "options": {"slots": 4}}),
    "lizard-shared": ("lizard", {"groups": BOTH, "map": {"kind": "planes", "planes": 2}}),
    "nmm": ("anchor", {"rule": "nmm", "sinks": 2, "heads": "q", "map": "cayley", "options": {"width": 5}}),
}
EVERY = [(family, name) for family in FAMILIES for name in PLANS]
OWN = [case for case in EVERY if case[1].startswith(("lolcats", "liger", "lizard"))]
TITAN = [case for case in EVERY if case[1].startswith(("titan", "nmm"))]


def plan_of(family, name, layers=2):
    preset, values = PLANS[name]
    return build(preset, builders.shape(family, layers), window=WINDOW, **values)


def learns(name):
    """Whether a plan has parameters of its own: Liger without read maps has none."""
    return not name.startswith("liger") or name.endswith("shared")


@cache
def model_of(family, name, dtype=torch.float64):
    """Two layers with memory weights as training might leave them."""
    return builders.hybrid(family, plan_of(family, name), layers=2, dtype=dtype)


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in ("C12 drift", "C10 C13 learning")])
@pytest.mark.parametrize("family,name", EVERY)
def test_every_plan_keeps(family, name, check):
    CHECKS[check](model_of(family, name))


@pytest.mark.parametrize("name", [name for family, name in OWN + TITAN if family == "llama"])
def test_c12_bf16_weights_with_fp32_states_stay_near(name):
    CHECKS["C12 drift"](model_of("llama", name))


@pytest.mark.parametrize("family,name", [case for case in OWN + TITAN if learns(case[1])])
def test_c10_c13_every_parameter_learns(family, name):
    CHECKS["C10 C13 learning"](model_of(family, name))


@pytest.mark.parametrize("family,name", EVERY)
def test_c2_c3_the_states_are_equal_however_a_text_was_read(family, name):
    model, ids = model_of(family, name), tokens(2, LENGTH)
    _, end = read_by(model, ids, [LENGTH])
    for widths in ([1] * LENGTH, [WINDOW - 1, 3, 2 * WINDOW, LENGTH - 3 * WINDOW - 2]):
        _, state = read_by(model, ids, widths)
        assert_same_state(state.state, 1, end.state, 1, model.plan)


@pytest.mark.parametrize("family,name", OWN)
def test_c4_c10_gradients_reach_every_parameter_and_do_not_depend_on_the_pieces(family, name):
    """A piece as long as the text, or of one token, is the same function."""
    found = []
    for chunk in (1, LENGTH):
        preset, values = PLANS[name]
        plan = build(preset, builders.shape(family, 2), window=WINDOW, **(values | {"chunk": chunk}))
        model = builders.hybrid(family, plan, layers=2)
        logits_loss = model(tokens(2, LENGTH)).logits.square().mean()
        own = model.memory_parameters()
        leaves = [*own.values(), model.backbone.model.layers[0].self_attn.k_proj.weight]
        found.append(torch.autograd.grad(logits_loss, leaves))
        assert all(bool(grad.abs().sum() > 0) for grad in found[-1])
    for a, b in zip(*found, strict=True):
        assert_near(a, b, 1e-9)
    if not learns(name):
        assert not own and set(model.backbone.state_dict()) == set(builders.teacher(family, 2).state_dict())


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c9_full_attention_without_slots_is_the_teacher(family, name):
    model, ids = model_of(family, name, torch.float32), tokens(2, LENGTH)
    teacher = builders.teacher(family, 2, torch.float32)
    assert torch.equal(logits_of(model, ids, plan=model.plan.teacher()), teacher(ids).logits)


@pytest.mark.parametrize("family,name", EVERY)
def test_c11_a_cache_is_never_cropped_silently(family, name):
    _, state = read_by(model_of(family, name), tokens(2, LENGTH), [LENGTH])
    with pytest.raises(ValueError, match="cannot be cropped"):
        state.crop(1)


@pytest.mark.parametrize("name", ["lolcats", "liger", "lizard", "titan-llama", "lizard-shared"])
@torch.no_grad()
def test_a_saved_model_gives_the_same_answers(name, tmp_path):
    model, ids = model_of("qwen3", name, torch.float32), tokens(2, LENGTH)
    model.save_pretrained(tmp_path)
    again = AnchorForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert again.plan == model.plan
    assert_near(logits_of(again, ids), logits_of(model, ids), 1e-6)
    fresh = builders.hybrid("qwen3", plan_of("qwen3", name), layers=2, dtype=torch.float32, shaken=False)
    loss = F.mse_loss(logits_of(fresh, ids), logits_of(model, ids))
    assert (float(loss) == 0) == (name == "liger")
