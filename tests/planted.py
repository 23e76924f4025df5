"""A tiny model in which the attention of one layer alone does anything, and texts that it wrote itself.

On its own text the untouched model cannot be beaten on average, so every restriction that matters costs loss.
"""

import functools

import numpy as np
import torch

from anchorlm.data import Document, TokenStore
from builders import shake
from small import char_tokenizer, tiny_llama

LAYERS, PLANTED, LENGTH = 4, 2, 96
LETTERS = [ord(c) for c in "abcdefghijklmnop "]


@functools.cache
def planted_weights():
    model = tiny_llama(layers=LAYERS)
    shake(dict(model.named_parameters()), seed=0, matrix=0.3, vector=0.1)
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.o_proj.weight.data *= 4 if index == PLANTED else 0
        layer.self_attn.q_proj.weight.data *= 2
    return model.state_dict()


def planted():
    """A new copy: wrapping changes a model in place."""
    model = tiny_llama(layers=LAYERS)
    model.load_state_dict(planted_weights())
    return model


@functools.cache
def texts(count=6, length=2 * LENGTH):
    """Strings sampled from the model, restricted to some letters."""
    model, tokenizer = planted(), char_tokenizer()
    letters = torch.tensor(tokenizer("".join(map(chr, LETTERS)), add_special_tokens=False)["input_ids"])
    generator = torch.Generator().manual_seed(0)
    ids = letters[torch.randint(len(letters), (count, 1), generator=generator)]
    with torch.no_grad():
        for _ in range(length):
            logits = model(ids[:, -LENGTH:]).logits[:, -1, letters]
            ids = torch.cat([ids, letters[torch.multinomial(logits.softmax(-1), 1, generator=generator)]], 1)
    return [tokenizer.decode(row.tolist()) for row in ids]


def store():
    documents = [Document(f"d{i}", text) for i, text in enumerate(texts())]
    return TokenStore.from_documents(documents, char_tokenizer())


def brute_distance(ids):
    """Tokens since the same pair of tokens last ended, 0 when it never did: by looking back, one by one."""
    found = np.zeros(len(ids), int)
    for t in range(1, len(ids)):
        for s in range(t - 1, 0, -1):
            if (ids[s - 1], ids[s]) == (ids[t - 1], ids[t]):
                found[t] = t - s
                break
    return found
