"""Tiny hybrids with open gates and a text that repeats itself: what the analyses of a hybrid are tested on."""

import numpy as np
import torch

from anchorlm.data import Document, TokenStore
from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import Plan
from builders import hybrid, shake_memory
from small import char_tokenizer, tiny_llama


def plan(window=6, chunk=4):
    """Four layers; the first has a slot of its own, the others share one."""
    slots = {"head": {"write": 0, "chunk": chunk}, "tail": {"write": 1, "read": [1, 2, 3], "chunk": chunk}}
    return Plan.from_dict({"attention": {"kind": "window", "window": window, "sinks": 2}, "slots": slots}, 4)


def kept_hybrid():
    """Layer 1 keeps exact tokens."""
    slot = {"rule": "kept", "write": 1, "chunk": 4, "options": {"tokens": 5}}
    stored = {"attention": {"kind": "window", "window": 6, "sinks": 2}, "slots": {"k": slot}}
    return hybrid(plan=Plan.from_dict(stored, 4), dtype=torch.float32)


def small_hybrid():
    """A new copy each time, for the tokenizer of one character a token."""
    return shake_memory(AnchorForCausalLM.from_backbone(tiny_llama(layers=4), plan(8, 8))).eval()


def text_store():
    letters = np.random.default_rng(0).choice(list("abcdefgh "), 400)
    return TokenStore.from_documents([Document("d", "".join(letters) * 4)], char_tokenizer())
