"""The oracle's attention against loops over single queries, and at its two ends."""

import math

import pytest
import torch

from anchorlm.analyze import oracle
from anchorlm.hf.layers import attention_as, run_layers
from anchorlm.ops.window import rotate
from anchorlm.plan import Plan, Reach
from builders import assert_near, hybrid, tokens

LENGTH, DEPTH, LAYER = 30, 3, 1
FULL = Plan((Reach(),) * DEPTH)


def setting(family, window):
    model = hybrid(family, "swa", layers=DEPTH)
    plan = Plan((window,) * DEPTH)
    x, teacher = model.get_input_embeddings()(tokens(1, LENGTH)), {}
    run_layers(model, x, FULL, record=teacher)
    return model, plan, x, teacher


def with_oracle(model, plan, x, teacher, count, window):
    with attention_as(model, oracle.functions(model, {LAYER: count}, teacher, window)):
        return run_layers(model, x, plan)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral-window"])
@torch.inference_mode()
def test_no_token_kept_is_the_window_and_all_of_them_full_attention(family):
    window = Reach("window", 5, 2)
    model, plan, x, teacher = setting(family, window)
    assert_near(with_oracle(model, plan, x, teacher, 0, window), run_layers(model, x, plan), 1e-9)
    bare = Reach("window", 5)
    reaches = [bare] * DEPTH
    reaches[LAYER] = Reach()
    wanted = run_layers(model, x, Plan(tuple(reaches)))
    assert_near(with_oracle(model, Plan((bare,) * DEPTH), x, teacher, LENGTH, bare), wanted, 1e-9)


def test_a_small_block_changes_nothing(monkeypatch):
    window = Reach("window", 5, 2)
    model, plan, x, teacher = setting("llama", window)
    with torch.inference_mode():
        whole = with_oracle(model, plan, x, teacher, 4, window)
        monkeypatch.setattr(oracle, "CELLS", 7 * LENGTH * 4)
        assert_near(with_oracle(model, plan, x, teacher, 4, window), whole, 1e-9)
        assert float((whole - run_layers(model, x, plan)).abs().max()) > 1e-3


@torch.inference_mode()
def test_the_chosen_are_those_with_the_highest_late_attention():
    window = Reach("window", 5, 2)
    model, _, _, teacher = setting("llama", window)
    layer = model.backbone.model.layers[LAYER]

    def rotary(places):
        return model.backbone.model.rotary_emb(teacher[LAYER], places)

    x = layer.input_layernorm(teacher[LAYER])
    chosen = oracle.choose(layer.self_attn, x, rotary, 4, window, Reach())
    q, k, _ = layer.self_attn.project(x)
    angles = rotary(torch.arange(LENGTH)[None])
    q, k = rotate(q, *angles)[0], rotate(k, *angles)[0]
    for head in range(2):
        best = [0.0] * LENGTH
        for query in (2 * head, 2 * head + 1):
            for t in range(LENGTH):
                scores = [float(q[query, t] @ k[head, s]) * layer.self_attn.scale for s in range(t + 1)]
                total = sum(math.exp(score - max(scores)) for score in scores)
                for s in range(2, t - 4):
                    best[s] = max(best[s], math.exp(scores[s] - max(scores)) / total)
        wanted = sorted(sorted(range(LENGTH), key=lambda s: -best[s])[:4])
        assert chosen[head].nonzero().flatten().tolist() == wanted
