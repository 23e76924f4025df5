"""Where a hybrid must be the teacher itself, to the bit, family by family."""

import pytest
import torch

import builders
from anchorlm.core import UserError
from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import ModelShape, Plan
from anchorlm.presets import build
from builders import FAMILIES, SLOT_KINDS, assert_near

SLIDING = [family for family in FAMILIES if family.endswith("-window")]
WHOLE = [family for family in FAMILIES if family not in SLIDING]
DTYPES = (torch.float32, torch.bfloat16)


def wrap(base, plan="full", **values):
    return AnchorForCausalLM.from_backbone(base, build(plan, ModelShape.from_config(base.config), **values)).eval()


def greedy(model, ids, **options):
    return model.generate(ids, max_new_tokens=12, do_sample=False, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", WHOLE)
@torch.no_grad()
def test_full_attention_and_no_slot_is_the_teacher_to_the_bit(family, dtype):
    base, ids = builders.teacher(family, dtype=dtype), builders.tokens(3, 29)
    logits, text = base(ids).logits, greedy(base, ids, output_logits=True, return_dict_in_generate=True)
    model = wrap(base)
    assert torch.equal(model(ids).logits, logits)
    ours = greedy(model, ids, output_logits=True, return_dict_in_generate=True)
    assert torch.equal(ours.sequences, text.sequences)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, text.logits, strict=True))


@pytest.mark.parametrize("family", SLIDING)
@torch.no_grad()
def test_a_sliding_teacher_keeps_its_window(family):
    """Prompts around its window, and text far beyond it."""
    base = builders.teacher(family)
    prompts = [builders.tokens(2, n) for n in (1, 7, 8, 9, 10, 11, 12, 13, 40)]
    logits, texts = [base(ids).logits for ids in prompts], [greedy(base, ids) for ids in prompts]
    model = wrap(base)
    for ids, expected, text in zip(prompts, logits, texts, strict=True):
        assert_near(model(ids).logits, expected, 1e-11)
        assert torch.equal(greedy(model, ids), text)


@pytest.mark.parametrize("family", WHOLE)
@torch.no_grad()
def test_padded_batches_generate_what_the_teacher_generates_alone(family):
    base, ids = builders.teacher(family), builders.tokens(3, 17)
    mask = torch.ones_like(ids)
    mask[0, :9], mask[1, :1] = 0, 0
    alone = [greedy(base, ids[i : i + 1, int((1 - mask[i]).sum()) :])[0, -12:] for i in range(3)]
    together = greedy(wrap(base), ids, attention_mask=mask)
    assert torch.equal(together[:, -12:], torch.stack(alone))


@pytest.mark.parametrize("kind", [k for k in SLOT_KINDS if k != "loud" and builders.slot(k).lag != "self"])
@torch.no_grad()
def test_a_text_within_chunk_and_window_is_the_teacher_to_the_bit(kind):
    """Even with trained memory weights: the branch is silent until something was written."""
    base = builders.teacher(dtype=torch.float32)
    ids = builders.tokens(2, 8)
    expected = {n: base(ids[:, :n]).logits for n in range(1, 9)}
    steps = greedy(base, ids[:, :1], output_logits=True, return_dict_in_generate=True).logits
    spec = {"chunk": 8} | {k: v for k, v in SLOT_KINDS[kind].items() if k != "chunk"}
    sinks = 0 if builders.evicted(spec) else 2
    model = builders.shake_memory(wrap(base, "anchor-f", window=8, sinks=sinks, gap=True, **spec))
    for n, logits in expected.items():
        assert torch.equal(model(ids[:, :n]).logits, logits)
    ours = greedy(model, ids[:, :1], output_logits=True, return_dict_in_generate=True).logits
    assert all(torch.equal(a, b) for a, b in zip(ours[:8], steps[:8], strict=True))
    assert not torch.allclose(ours[9], steps[9])


@pytest.mark.parametrize("family", WHOLE)
@torch.no_grad()
def test_every_family_is_silent_within_chunk_and_window(family):
    base, ids = builders.teacher(family, dtype=torch.float32), builders.tokens(2, 8)
    expected = base(ids).logits
    model = builders.shake_memory(wrap(base, "anchor", window=8, sinks=2))
    assert torch.equal(model(ids).logits, expected)


@pytest.mark.parametrize("kind", ["default", "convex", "linear", "loud"])
@torch.no_grad()
def test_a_fresh_hybrid_is_the_window_alone(kind):
    """Gates start at zero and maps at the identity, so an additive branch adds nothing at any length."""
    model = builders.hybrid(plan="anchor-f", shaken=False, gap=True, **SLOT_KINDS[kind])
    ids = builders.tokens(2, 40)
    alone = model(ids, plan=model.plan.without_slots()).logits
    assert torch.equal(model(ids).logits, alone) == (kind != "convex")


@torch.no_grad()
def test_the_teacher_stays_inside_a_trained_hybrid():
    base, ids = builders.teacher(dtype=torch.float32), builders.tokens(2, 40)
    expected = base(ids).logits
    model = builders.shake_memory(wrap(base, "anchor-f", window=6, sinks=2))
    assert torch.equal(model(ids, plan=model.plan.teacher()).logits, expected)
    assert not torch.allclose(model(ids).logits, expected, atol=0.1)


@torch.no_grad()
def test_an_open_window_and_closed_gates_are_the_teacher_at_any_length():
    base, ids = builders.teacher(dtype=torch.float32), builders.tokens(2, 40)
    expected = base(ids).logits
    model = wrap(base, "anchor-f", window=40, sinks=2, chunk=5)
    assert torch.equal(model(ids).logits, expected)


def test_wrapping_shares_every_weight_of_the_backbone():
    base = builders.teacher("llama-tied")
    weights = dict(base.named_parameters())
    model = wrap(base, "anchor", window=6)
    ours = dict(model.backbone.named_parameters())
    assert all(ours[name] is weight for name, weight in weights.items())
    assert model.backbone.lm_head.weight is model.backbone.model.embed_tokens.weight
    assert set(model.memory_parameters()) == {n for n, _ in model.named_parameters()} - {
        f"backbone.{n}" for n in weights
    }
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("change", [{"model_type": "gpt2"}, {"rope": "dynamic"}, {"rope": "longrope"}], ids=str)
def test_what_cannot_be_wrapped_exactly_is_refused(change):
    base = builders.teacher()
    if "rope" in change:
        base.config.rope_parameters = base.config.rope_parameters | {"rope_type": change["rope"]}
    else:
        base.config.model_type = "gpt2"
    with pytest.raises(UserError, match=list(change.values())[0]):
        AnchorForCausalLM.from_backbone(base, Plan.from_dict({}, 4))


def test_a_plan_of_another_depth_is_refused():
    with pytest.raises(UserError, match="the plan has 3 layers; the model has 4"):
        AnchorForCausalLM.from_backbone(builders.teacher(), build("swa", builders.shape(layers=3)))


def test_tokens_lost_between_chunk_and_the_teachers_own_window_are_refused():
    """The plan's window would cover the chunk; the teacher's, which is narrower, does not."""
    base = builders.teacher("mistral-window")
    plan = build("anchor", builders.shape("mistral-window"), window=16)
    with pytest.raises(UserError, match="slots.head.chunk is 16 .* layer 0 sees window 11 .* up to 5 tokens"):
        AnchorForCausalLM.from_backbone(base, plan)
