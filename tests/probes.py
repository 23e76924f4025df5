"""Small models and ways to look inside them: one layer alone, calls in pieces, and what a layer's memory is given."""

import builders
from anchorlm.conformance.checks import logits_of, read_by
from anchorlm.hf import Captures
from anchorlm.plan import Plan

__all__ = ["logits_of", "read_by"]  # the tests take them from here


def one_layer(reach=None, family="llama", **slot):
    """A model of one layer and one slot."""
    entry = {"write": 0, "chunk": 4, "gap": True} | slot
    plan = Plan.from_dict({"attention": reach or {"kind": "none"}, "slots": {"s": entry}}, 1)
    return builders.hybrid(family, plan, layers=1)


def attended(model, ids, layer=0):
    captures = Captures()
    logits_of(model, ids, captures=captures)
    return captures.outputs[layer]


def layer_inputs(model, ids):
    """What layer 0 gives its memory: x [T, D], q, k, v [T, H, d] before RoPE."""
    layer, dim = model.backbone.model.layers[0], model.shape.head_dim
    x = layer.input_layernorm(model.backbone.model.embed_tokens(ids))[0]
    a = layer.self_attn
    return (x, *(p(x).view(len(x), -1, dim) for p in (a.q_proj, a.k_proj, a.v_proj)))
