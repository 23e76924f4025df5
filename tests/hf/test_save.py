"""A whole hybrid on disk and back: every tensor, the logits, shared tensors, and weights that a file lacks."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

import builders
from anchorlm.hf import AnchorConfig, AnchorForCausalLM
from anchorlm.memory.base import inverse_softplus
from anchorlm.plan import Plan
from anchorlm.presets import build
from builders import FAMILIES, SLOT_KINDS, assert_near

IDS = builders.tokens(2, 25)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr("transformers.modeling_utils.logger.warning", lambda *_, **__: None)


def saved(model, folder):
    model.save_pretrained(folder)
    return folder


def tensors_equal(a, b):
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_comes_back_equal(family, tmp_path):
    model = builders.hybrid(family, dtype=torch.float32)
    again, info = AnchorForCausalLM.from_pretrained(saved(model, tmp_path), output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert tensors_equal(model, again)
    assert again.plan == model.plan and again.shape == model.shape
    assert not any(t.is_meta for t in [*again.parameters(), *again.buffers()])
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    tied = again.backbone.lm_head.weight is again.backbone.model.embed_tokens.weight
    assert tied == model.backbone.config.tie_word_embeddings
    stored = load_file(tmp_path / "model.safetensors")
    assert ("backbone.lm_head.weight" in stored) != tied


@pytest.mark.parametrize("kind", SLOT_KINDS)
@torch.no_grad()
def test_every_kind_of_slot_comes_back_equal(kind, tmp_path):
    model = builders.hybrid(plan="anchor-f", dtype=torch.float32, layers=2, gap=True, **SLOT_KINDS[kind])
    again = AutoModelForCausalLM.from_pretrained(saved(model, tmp_path))
    assert isinstance(again, AnchorForCausalLM)
    assert tensors_equal(model, again)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


@torch.no_grad()
def test_a_bf16_backbone_keeps_its_memory_in_fp32(tmp_path):
    model = builders.hybrid("qwen3", dtype=torch.bfloat16)
    own = set(model.memory_parameters())
    again = AnchorForCausalLM.from_pretrained(saved(model, tmp_path), dtype="auto")
    assert {n: p.dtype for n, p in again.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}
    assert {p.dtype for n, p in again.named_parameters() if n in own} == {torch.float32}
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    small = AnchorForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for n, p in small.named_parameters() if n in own} == {torch.float32}


def test_the_generation_settings_come_back(tmp_path):
    model = builders.hybrid(dtype=torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=5, pad_token_id=6)
    again = AnchorForCausalLM.from_pretrained(saved(model, tmp_path))
    assert (again.generation_config.eos_token_id, again.generation_config.pad_token_id) == (5, 6)


def documented_start(name, parameter, step):
    """The start of a memory parameter, or None where it is random."""
    last = name.rsplit(".", 1)[-1]
    if name.endswith("steps.bias"):
        return torch.full_like(parameter, inverse_softplus(step))
    if last in ("scale", "norm_weight", "value_scale"):
        return torch.ones_like(parameter)
    return None if last in ("w0", "w1", "w2", "basis") else torch.zeros_like(parameter)


@pytest.mark.parametrize("kind", ["default", "conv", "muon", "planes", "dense", "linear", "expm-bare"])
def test_memory_weights_that_a_file_lacks_get_their_documented_start(kind, tmp_path):
    """And the ones it has are not touched: half are removed, then the other half, then all."""
    model = builders.hybrid(plan="anchor-f", dtype=torch.float32, layers=2, gap=True, **SLOT_KINDS[kind])
    file = saved(model, tmp_path) / "model.safetensors"
    stored, own = load_file(file), sorted(model.memory_parameters())
    step = model.plan.slots["l0"].rule_options.step
    for gone in (own[::2], own[1::2], own):
        save_file({n: t for n, t in stored.items() if n not in gone}, file, metadata={"format": "pt"})
        again, info = AnchorForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        assert set(info["missing_keys"]) == set(gone)
        for name, parameter in again.named_parameters():
            start = documented_start(name, parameter, step) if name in gone else stored.get(name, parameter)
            if start is not None:
                assert_near(parameter, start, 1e-6, name)
            else:
                assert 0.5 < float(parameter.detach().std()) * parameter.shape[-1] ** 0.5 < 4, name


def test_building_from_a_config_alone_starts_as_documented():
    model = builders.hybrid(plan="anchor-f", dtype=torch.float32, layers=2)
    fresh = AnchorForCausalLM(AnchorConfig.of(model.backbone.config, model.plan))
    for name, parameter in fresh.memory_parameters().items():
        start = documented_start(name, parameter, model.plan.slots["l0"].rule_options.step)
        if start is not None:
            assert_near(parameter, start, 1e-6, name)
    assert all(bool(torch.isfinite(p).all()) for p in fresh.parameters())


def test_the_stored_plan_is_explicit_and_round_trips(tmp_path):
    model = builders.hybrid(plan="anchor-hybrid", dtype=torch.float32)
    stored = json.loads((saved(model, tmp_path) / "config.json").read_text())
    assert stored["model_type"] == "anchorlm"
    assert Plan.from_dict(stored["plan"], 4) == model.plan
    assert set(stored["plan"]["slots"]["g0"]) >= {
        "rule",
        "chunk",
        "lag",
        "heads",
        "map",
        "mix",
        "options",
        "write",
        "read",
    }


@torch.no_grad()
def test_a_plan_that_needs_other_weights_is_refused(tmp_path):
    model = builders.hybrid(dtype=torch.float32)
    with pytest.raises(ValueError, match="slot 'l0' that the model has no weights for"):
        model(IDS, plan=build("anchor-f", builders.shape(), window=6))
    with pytest.raises(ValueError, match="the plan has 2 layers; the model has 4"):
        model(IDS, plan=build("full", builders.shape(layers=2)))


def test_a_damaged_file_is_refused(tmp_path):
    file = saved(builders.hybrid(dtype=torch.float32), tmp_path) / "model.safetensors"
    Path(file).write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(Exception, match="(?i)safetensors|header|incomplete|deserializ"):
        AnchorForCausalLM.from_pretrained(tmp_path)


@torch.no_grad()
def test_a_resized_vocabulary_survives_saving(tmp_path):
    model = builders.hybrid(plan="anchor", dtype=torch.float32)
    model.resize_token_embeddings(70, mean_resizing=False)
    assert model.shape.vocab == 70 and model.config.backbone["vocab_size"] == 70
    model.save_pretrained(tmp_path)
    again = AnchorForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([[1, 69, 5]])
    assert torch.equal(again(ids).logits, model(ids).logits)
