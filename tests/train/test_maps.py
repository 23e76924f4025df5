"""The cross-entropy of attention maps against loops, and the recipes that come with the package."""

import pytest
import torch
from tiny import tiny_hybrid, tiny_recipe

from anchorlm.core import UserError
from anchorlm.ops import reference_linear as reference
from anchorlm.ops.window import rotate
from anchorlm.settings import load_recipe
from anchorlm.train.losses import View
from anchorlm.train.maps import AttentionMaps, mapped_readers
from anchorlm.train.stages import enter_stage, rate_factor
from builders import assert_near, normal, shake

PLAN = {
    "attention": {"kind": "window", "window": 4},
    "slots": {"a": {"rule": "hedgehog", "write": 1, "options": {"width": 5}}},
}


def by_loop(model, x, source=None, layer=1):
    """Summed cross-entropy of a layer for one text whose input it is, x [T, D]; layer 1 writes, from `source`."""
    attentions = [found.self_attn for found in model.backbone.model.layers]
    attention, source = attentions[layer], x if source is None else source
    angles = model.backbone.model.rotary_emb(x[None], torch.arange(len(x))[None])
    q, k = (rotate(u, *angles)[0] for u in attention.project(x[None])[:2])
    far_k = rotate(attentions[1].project(source[None])[1], *angles)[0]
    writer, reader, total = attentions[1].writers["a"], attention.readers["a"], 0.0
    for h in range(4):
        fq = [reference.hedgehog(u, reader.queries.weight[h]) for u in q[h]]
        fk = [reference.hedgehog(u, writer.keys.weight[h]) for u in far_k[h // 2]]
        for t in range(len(x)):
            scores = k[h // 2, : t + 1] @ q[h, t] * attention.scale
            first = max(0, t - 3)
            near = torch.sigmoid(reader.gate_share[h]) * torch.exp(scores[first:] - scores[first:].max())
            far = [fq[t] @ fk[j] for j in range(first)]
            weights = torch.cat([torch.stack(far), near]) if far else near
            total = total - (torch.softmax(scores, 0) * torch.log(weights / weights.sum())).sum()
    return total


def test_maps_equal_the_loop_over_packed_and_padded_texts():
    model = tiny_hybrid(PLAN)
    shake(model.memory_parameters(), 3, matrix=0.3, vector=0.3)
    model = model.double()
    torch.manual_seed(0)
    x, mask = torch.randn(1, 16, 32, dtype=torch.float64), torch.ones(1, 16, dtype=torch.bool)
    starts = torch.zeros(1, 16, dtype=torch.bool)
    starts[0, [0, 10]], mask[0, 14:] = True, False
    view = View(torch.zeros(1, 16).long(), mask, starts, inputs={1: x})
    term = AttentionMaps(model, mapped_readers(model.plan))
    assert term.needs.inputs == (1,) and float(term.totals(view)) == 14 * 4
    theirs = by_loop(model, x[0, :10]) + by_loop(model, x[0, 10:14])
    assert_near(term.sums(view)[0], theirs, 1e-6)
    own = list(model.memory_parameters().values())
    for a, b in zip(torch.autograd.grad(term.sums(view).sum(), own), torch.autograd.grad(theirs, own)):
        assert_near(a, b, 1e-5)


def test_maps_of_a_shared_slot_are_those_of_each_reader():
    """Layer 2 reads what layer 1 wrote: far tokens by the keys of layer 1, near ones by its own."""
    model = tiny_hybrid({**PLAN, "slots": {"a": PLAN["slots"]["a"] | {"read": [1, 2], "map": "cayley"}}})
    shake(model.memory_parameters(), 3, matrix=0.3, vector=0.3)
    model = model.double()
    x, y = normal(1, 11, 32, seed=1), normal(1, 11, 32, seed=2)
    whole = torch.ones(1, 11, dtype=torch.bool)
    view = View(torch.zeros(1, 11).long(), whole, None, inputs={1: x, 2: y})
    term = AttentionMaps(model, mapped_readers(model.plan))
    assert term.needs.inputs == (1, 2) and term.totals(view).tolist() == [44, 44]
    assert_near(term.sums(view), torch.stack([by_loop(model, x[0]), by_loop(model, y[0], x[0], 2)]), 1e-6)


def test_maps_without_a_shared_normaliser_are_refused():
    with pytest.raises(UserError, match="stage1.w_maps is 1 but no slot of the plan has mix 'shared'"):
        enter_stage(tiny_hybrid(), "stage1", tiny_recipe(stage1={"w_maps": 1.0}))


def test_published_recipes():
    cats, liger, lizard = (load_recipe(name) for name in ("lolcats", "liger", "lizard"))
    assert (cats.stage1.lr, cats.stage1.mse_inputs, cats.stage2.lr, cats.stage2.train_memory) == (
        0.01,
        "teacher",
        1e-4,
        False,
    )
    assert liger.stage1.steps == 0 and liger.stage2.lora.targets == ("q", "k", "v") and liger.stage2.lora.alpha == 8
    assert lizard.data.length == 2048 and lizard.stage1.beta2 == 0.99 and lizard.stage1.floor == 0.1
    assert rate_factor(lizard.stage1, lizard.stage1.steps) == pytest.approx(0.1)
