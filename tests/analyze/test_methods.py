"""Similarity of the read-outs of published methods, with a state in each layer and with shared ones."""

import math

import numpy as np
import pytest
import torch

from anchorlm.analyze import run_analysis
from anchorlm.analyze.explain.readouts import read_outs
from anchorlm.hf import AnchorForCausalLM, Captures
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from builders import shake_memory
from explained import text_store
from small import char_tokenizer, tiny_llama

PLANS = {
    "lolcats": {"window": 8, "options": {"width": 5}},
    "liger": {"window": 8},
    "lizard": {"window": 8},
    "titan-llama": {"segment": 8, "converted": 4, "options": {"width": 5}},
}
CASES = [(name, groups) for name in PLANS for groups in (None, [[0, 1, 3]])]


def model_of(name, groups):
    base = tiny_llama(layers=4)
    plan = build(name, ModelShape.from_config(base.config), groups=groups, **PLANS[name])
    return shake_memory(AnchorForCausalLM.from_backbone(base, plan)).eval()


@pytest.mark.parametrize("name,groups", CASES)
def test_similarity_works_over_the_read_outs(name, groups):
    model = model_of(name, groups)
    found = run_analysis(model, char_tokenizer(), "similarity", text_store(), context=64, documents=3)["similarity"]
    slots = ["g0", "g0", "l2", "g0"] if groups else ["l0", "l1", "l2", "l3"]
    assert [(row["layer"], row["slot"]) for row in found["readers"]] == list(enumerate(slots))
    assert found["window"] == 8 and found["targets"] > 20
    assert np.allclose(np.diagonal(found["cka"]), 1) and np.allclose(np.diagonal(found["cosine"]), 1)
    assert all(math.isfinite(value) for row in found["cka"] for value in row)
    kinds = {kind: row["n"] for kind, row in found["pairs"].items()}
    assert kinds.get("same slot", 0) == (3 if groups else 0) and kinds["all"] == 6


@torch.no_grad()
@pytest.mark.parametrize("groups", [None, [[0, 1, 3]]])
def test_a_read_out_is_what_the_mixer_joins(groups):
    """Liger's layer 0 answers half of its window and half of its read-out, through its map where it has one."""
    model, ids = model_of("liger", groups), torch.arange(40) * 7 % 250
    (joined, near), places = (Captures(), Captures()), np.arange(40)
    model(ids[None], captures=joined)
    model(ids[None], captures=near, plan=model.plan.without_slots())
    answers = read_outs(model, ids.numpy(), places)[0, "g0" if groups else "l0"].transpose(0, 1)[None]
    if groups:
        answers = model.backbone.model.layers[0].self_attn.readers["g0"].map(answers)
    expected = 2 * joined.outputs[0] - near.outputs[0]
    torch.testing.assert_close(answers.transpose(1, 2).flatten(2), expected, atol=1e-5, rtol=1e-4)
