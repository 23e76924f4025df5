"""A hybrid layer's attention, projections, biases, norms and RoPE scaling included, against the token loop."""

from dataclasses import replace

import pytest
import torch

import builders
from anchorlm.hf import Captures
from anchorlm.ops import reference
from anchorlm.ops.window import rotate
from anchorlm.plan import Plan, Reach
from builders import assert_near

LENGTH = 23
REACHES = {
    "full": Reach(),
    "window": Reach("window", 5),
    "sinks": Reach("window", 6, 3),
    "segment": Reach("segment", segment=5),
    "terrace": Reach("terrace", 4),
    "blind": Reach("window", 5, positions="none"),
    "none": Reach("none"),
}
FULL, NARROW = Reach(), Reach("window", 5, 2)
MIXED = {
    "one head full": replace(NARROW, heads=((1, FULL),)),
    "one head narrow": Reach(heads=((0, NARROW),)),
    "apart": replace(NARROW, heads=((0, FULL), (2, FULL), (3, Reach("none")))),
    "each its own": Reach("segment", segment=5, heads=((0, Reach("window", 6)), (1, NARROW), (3, Reach("window", 4)))),
    "all named": Reach("none", heads=tuple((head, FULL if head % 2 else NARROW) for head in range(4))),
}  # fmt: skip


def by_loop(model, layer, x, reach):
    """[T, Hq d] for one row x [T, D], the layer's normalised input; each KV head under its own reach."""
    attention = model.backbone.model.layers[layer].self_attn
    dim = model.shape.head_dim
    q, k, v = (p(x).view(len(x), -1, dim) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    if attention.q_norm is not None:
        q, k = attention.q_norm(q), attention.k_norm(k)
    cos, sin = model.backbone.model.rotary_emb(x[None], torch.arange(len(x))[None])

    def turn(u, position):
        at = slice(position, position + 1)
        return rotate(u[None, None, None], cos[:, at], sin[:, at])[0, 0, 0]

    groups = q.shape[1] // k.shape[1]
    heads = [
        reference.attention(
            q[:, h],
            k[:, h // groups],
            v[:, h // groups],
            reach.of(h // groups),
            attention.scale,
            turn if reach.positions == "rope" else None,
        )
        for h in range(q.shape[1])
    ]
    return torch.stack(heads, 1).flatten(1)


@pytest.mark.parametrize("name", REACHES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_a_layer_equals_the_token_loop(family, name):
    reach = REACHES[name]
    model = builders.hybrid(family, Plan((reach, reach)), layers=2)
    ids, captures = builders.tokens(1, LENGTH), Captures()
    model(ids, captures=captures)
    first = model.backbone.model.layers[0]
    x = first.input_layernorm(model.backbone.model.embed_tokens(ids))[0]
    assert_near(captures.outputs[0][0], by_loop(model, 0, x, reach), 1e-11)


@torch.no_grad()
def test_the_teachers_own_window_is_never_exceeded():
    """A plan of full attention on a model that slides keeps the model's window, layer by layer."""
    for family, windows in (("mistral-window", {0: 11, 1: 11}), ("qwen2-window", {0: None, 1: 9})):
        model = builders.hybrid(family, "full", layers=2)
        captures, ids = Captures(), builders.tokens(1, LENGTH)
        model(ids, captures=captures)
        first = model.backbone.model.layers[0]
        x = first.input_layernorm(model.backbone.model.embed_tokens(ids))[0]
        reach = Reach("window", windows[0]) if windows[0] else Reach()
        assert_near(captures.outputs[0][0], by_loop(model, 0, x, reach), 1e-11)
        limits = [r.window for r in (builders.cut_reach(model, i) for i in range(2))]
        assert limits == list(windows.values())


@pytest.mark.parametrize("length", [1, 4, 5, 6, LENGTH])
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_heads_of_unlike_reach_equal_the_token_loop_in_values_and_gradients(family, name, length):
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4}
    model = builders.hybrid(family, Plan((MIXED[name],)), layers=1, teacher_values=sizes)
    ids, captures = builders.tokens(1, length), Captures()
    model(ids, captures=captures)
    first = model.backbone.model.layers[0]
    x = first.input_layernorm(model.backbone.model.embed_tokens(ids))[0]
    ours, theirs = captures.outputs[0][0], by_loop(model, 0, x, MIXED[name])
    assert_near(ours, theirs, 1e-11)
    weight = builders.normal(*ours.shape)
    parameters = [p.weight for p in (first.self_attn.q_proj, first.self_attn.k_proj, first.self_attn.v_proj)]
    grads = [torch.autograd.grad((y * weight).sum(), parameters) for y in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        assert_near(a, b, 1e-10)
