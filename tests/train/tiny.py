"""A hybrid of four layers and a text of a few thousand tokens: what a training test needs."""

from pathlib import Path

import torch

from anchorlm.convert.attach import convert
from anchorlm.data import Document, TokenStore
from anchorlm.plan import Plan
from anchorlm.settings import Recipe
from small import char_tokenizer, tiny_llama

PLAN = {
    "attention": {"kind": "window", "window": 8, "sinks": 2},
    "slots": {
        "head": {"chunk": 8, "write": 0, "read": [0, 1], "map": {"kind": "cayley"}},
        "tail": {"chunk": 8, "write": 2, "read": [2, 3], "map": {"kind": "dense"}},
    },
}


def tiny_hybrid(plan=PLAN, gate=0.05, seed=0):
    """Gates are opened a little: at exactly zero the memory behind them has no gradient yet."""
    model = convert(tiny_llama(layers=4, seed=seed), Plan.from_dict(plan, 4))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.memory_parameters().items():
            if "gate" in name:
                parameter.add_(gate * torch.randn_like(parameter))
    return model


def tiny_recipe(**changes):
    """6 steps in all, a checkpoint every 2."""
    base = {
        "data": {"length": 32},
        "stage1": {"steps": 3, "warmup": 1, "lr": 1e-3},
        "stage2": {"steps": 3, "warmup": 1, "lr": 1e-3, "lora": {"rank": 2}},
        "save_every": 2,
    }
    for key, value in changes.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return Recipe.model_validate(base)


def tiny_store(words="the anchor holds the ship and the ship holds still", documents=40):
    texts = [Document(f"d{i}", f"{i} {words} {i * 7} " * (1 + i % 3)) for i in range(documents)]
    return TokenStore.from_documents(texts, char_tokenizer())


def run_files(out):
    return sorted(path.name for path in Path(out).iterdir())
