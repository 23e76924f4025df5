"""KV heads that see otherwise than their layer: the teacher to the bit, exact bytes, and caches of other plans."""

import pytest
import torch

import builders
from anchorlm.describe import state_bytes
from anchorlm.plan import ModelShape, Plan
from anchorlm.reading import position_limit
from builders import FAMILIES, assert_near

WINDOW = {"kind": "window", "window": 6, "sinks": 2}
WHOLE = [family for family in FAMILIES if not family.endswith("-window")]


def plan_of(heads, layers=4, **more):
    return Plan.from_dict({"attention": WINDOW | {"heads": heads}, **more}, layers)


def generated(model, ids):
    options = {"max_new_tokens": 9, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return torch.stack(model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", WHOLE)
@torch.no_grad()
def test_full_attention_in_every_head_is_the_teacher_to_the_bit(family, dtype):
    model, ids = builders.hybrid(family, plan_of({"0-1": "full"}), dtype=dtype), builders.tokens(3, 29)
    base = builders.teacher(family, dtype=dtype)
    assert torch.equal(model(ids).logits, base(ids).logits)
    assert torch.equal(generated(model, ids[:, :17]), generated(base, ids[:, :17]))


@pytest.mark.parametrize("family", WHOLE)
@torch.no_grad()
def test_a_text_within_the_window_is_the_teacher_to_the_bit(family):
    model, ids = builders.hybrid(family, plan_of({1: "full"}), dtype=torch.float32), builders.tokens(2, 6)
    expected = builders.teacher(family, dtype=torch.float32)(ids).logits
    assert torch.equal(model(ids).logits, expected)
    assert not torch.equal(
        model(builders.tokens(2, 9)).logits, model(builders.tokens(2, 9), plan=model.plan.teacher()).logits
    )


@torch.no_grad()
def test_no_head_exceeds_the_teachers_own_window():
    ids = builders.tokens(2, 40)
    for family in ("mistral-window", "qwen2-window"):
        model = builders.hybrid(family, plan_of({"0-1": "full"}))
        assert_near(model(ids).logits, builders.teacher(family)(ids).logits, 1e-10)


@pytest.mark.parametrize(
    "heads", [{0: "full"}, {1: "none"}, {0: {"kind": "window", "window": 3}}, {"0-1": "full"}], ids=str
)
@torch.no_grad()
def test_measured_bytes_are_the_closed_form_by_part(heads):
    slots = {"s": {"write": 1, "chunk": 5, "gap": True}}
    model = builders.hybrid(plan=plan_of(heads, slots=slots), dtype=torch.float32)
    expected = state_bytes(model.plan, ModelShape.from_config(model.backbone.config, 4))
    growing = expected.pop("full attention per token")
    for length in (29, 59):
        cache = model.new_cache()
        model(builders.tokens(2, length), cache=cache)
        measured = cache.nbytes()
        assert measured.pop("full attention") == 2 * length * growing
        assert measured == {part: 2 * size for part, size in expected.items()}


@torch.no_grad()
def test_a_cache_of_other_heads_is_taken_over_as_far_as_it_goes():
    """One layer, so that its keys do not depend on the plan."""
    model, ids = builders.hybrid(plan=Plan.from_dict({}, 1), layers=1), builders.tokens(2, 30)
    bare = {"kind": "window", "window": 6}
    mixed, other, window, full = (
        Plan.from_dict({"attention": bare | {"heads": heads}}, 1)
        for heads in ({0: "full"}, {1: "full"}, {}, {"0-1": "full"})
    )
    for filled, used in ((full, mixed), (full, window), (mixed, window), (mixed, mixed), (full, other)):
        cache = model.new_cache()
        model(ids[:, :20], cache=cache, plan=filled)
        assert_near(model(ids[:, 20:], cache=cache, plan=used).logits, model(ids, plan=used).logits[:, 20:])
    for filled, used in ((mixed, full), (mixed, other), (window, mixed)):
        cache = model.new_cache()
        model(ids[:, :20], cache=cache, plan=filled)
        with pytest.raises(ValueError, match="narrower plan: layer 0 holds 5 tokens, full needs 20"):
            model(ids[:, 20:], cache=cache, plan=used)


def test_a_text_beyond_the_positions_is_known_to_be_beyond():
    limits = [position_limit(builders.hybrid(plan=plan_of(heads))) for heads in ({}, {1: "full"}, {1: "none"})]
    assert limits == [None, 256, None]
