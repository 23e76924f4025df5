"""Filler: running text from a store or sentences repeated, and places in it where a sentence may be put."""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.data.sources import Document
from anchorlm.data.tokens import TokenStore

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")


def noise_store(tokenizer: Any, tokens: int) -> TokenStore:
    """The sentences of NOISE over and over, at least `tokens` tokens of them."""
    line = " ".join(NOISE) + "\n"
    lines = 1 + tokens // max(1, len(tokenizer(line, add_special_tokens=False)["input_ids"]) - 1)
    return TokenStore.from_documents([Document("repeated filler", line * (lines + 1))], tokenizer)


def running_text(store: TokenStore, count: int, rng: np.random.Generator, what: str) -> np.ndarray:
    """`count` token ids of running text: from one document when it is long enough, else from several in turn.

    Raises UserError, naming `what` the text is for, when the store holds fewer tokens.
    """
    have = int(store.offsets[-1]) - len(store) * (store.eos is not None)
    if have < count:
        raise UserError(f"data has {have} tokens; {what} with {count} tokens of text needs more")
    sizes = np.diff(store.offsets) - (store.eos is not None)
    long_enough = np.flatnonzero(sizes >= count)
    if len(long_enough):
        document = int(rng.choice(long_enough))
        begin = int(rng.integers(sizes[document] - count + 1))
        return store.document(document)[begin : begin + count]
    order, parts, found = rng.permutation(len(store)), [], 0
    for document in order:
        parts.append(store.document(int(document))[: count - found])
        found += len(parts[-1])
        if found == count:
            break
    return np.concatenate(parts)


def sentence_end(text: np.ndarray, wanted: int, tokenizer: Any) -> int:
    """The place nearest to `wanted` where a sentence ends, within 32 tokens; else `wanted` itself."""
    for distance in range(33):
        for at in {wanted - distance, wanted + distance}:
            if at in (0, len(text)):
                return at
            if 0 < at < len(text) and tokenizer.decode([int(text[at - 1])]).rstrip(" ").endswith((".", "\n")):
                return at
    return wanted
