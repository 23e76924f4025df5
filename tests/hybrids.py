"""A tiny base on disk, and hybrids of every kind made from it."""

import pytest
import torch

from anchorlm.convert.attach import convert
from anchorlm.convert.bases import load_base
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from builders import normal
from small import char_tokenizer, tiny_llama

PLANS = ("swa", "anchor", "anchor-f", "anchor-i", "anchor-hybrid")


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "tiny"
    tiny_llama(layers=4).save_pretrained(folder)
    char_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tied_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied") / "tiny"
    model = tiny_llama(layers=4)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(folder)
    char_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def hybrid(base_folder):
    return make(base_folder, "anchor")


def make(folder, plan, shake=True, **values):
    """A hybrid with memory that speaks: fresh gates are zero, so every memory parameter is moved a little."""
    base = load_base(str(folder), dtype="float32")
    values = {"window": 8} | ({} if plan == "swa" else {"chunk": 8}) | values
    chosen = plan if isinstance(plan, dict) else build(plan, ModelShape.from_config(base.model.config), **values)
    model = convert(base, chosen)
    generator = torch.Generator().manual_seed(1)
    if shake:
        for parameter in model.memory_parameters().values():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def shake_lora(model):
    from anchorlm.convert.adapters import lora_parameters

    generator = torch.Generator().manual_seed(2)
    for parameter in lora_parameters(model).values():
        parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)


def tokens(rows=2, length=40):
    return torch.randint(0, 250, (rows, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def logits(model, ids=None):
    return model(tokens() if ids is None else ids).logits


def published(prefix="", lora=False):
    """A synthetic LoLCATs checkpoint for `base_folder`, in the layout of its public repository."""
    found = {}
    for i in range(4):
        layer = f"{prefix}model.layers.{i}.self_attn."
        for n, part in enumerate(("q", "k")):
            found[f"{layer}feature_map_{part}.mlp.layer"] = normal(4, 8, 6, seed=10 * i + n).float()
        found[f"{layer}window_factors"] = normal(1, 4, 1, 1, seed=10 * i + 2).float()
        if lora:
            found[f"{layer}q_proj.lora_A.default.weight"] = normal(2, 32, seed=10 * i + 3).float()
            found[f"{layer}q_proj.lora_B.default.weight"] = 0.1 * normal(32, 2, seed=10 * i + 4).float()
    return found
