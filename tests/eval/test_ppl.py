"""Perplexity: equal to a naive loop for any block and batch, every token once, halves, cross-window targets."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlm.core import UserError
from anchorlm.data import Document, TokenStore
from anchorlm.data.crossing import cross_window
from anchorlm.eval.ppl import cut, perplexity, ratio
from anchorlm.eval.stats import bootstrap_ratio, wilson
from small import char_tokenizer, tiny_llama

MODEL = tiny_llama()
TEXT = "it was the best of times, it was the worst of times, " * 6


def store_of(*texts, bos=False):
    return TokenStore.from_documents([Document(f"d{i}", text) for i, text in enumerate(texts)], char_tokenizer(bos))


@torch.inference_mode()
def naive(pieces):
    """Sum of nll and number of targets, one full forward pass and one target at a time."""
    total, count = 0.0, 0
    for piece in pieces:
        logits = MODEL(torch.from_numpy(piece)[None]).logits[0].double().log_softmax(-1)
        for t in range(1, len(piece)):
            total, count = total - float(logits[t - 1, piece[t]]), count + 1
    return total, count


@settings(deadline=None, max_examples=12)
@given(block=st.sampled_from([1, 7, 32, 63, 64, 200]), batch=st.integers(1, 4), tails=st.booleans())
def test_equals_the_naive_loop_for_any_block_and_batch(block, batch, tails):
    store = store_of(TEXT, TEXT[40:120], "x")
    total, count = naive(cut(store, 64, tails=tails))
    result = perplexity(MODEL, store, 64, block=block, batch=batch, tails=tails)
    assert result["groups"]["all"]["tokens"] == count
    assert result["value"] == pytest.approx(math.exp(total / count), rel=1e-5)


def test_every_token_is_scored_once_and_pieces_do_not_cross_documents():
    store = store_of(TEXT[:150], TEXT[:70])
    assert [len(p) for p in cut(store, 64, tails=True)] == [64, 64, 22, 64, 6]
    assert [len(p) for p in cut(store, 64)] == [64, 64, 64]
    whole = cut(store_of(TEXT), 16)
    assert [p.tolist() for p in cut(store_of(TEXT), 16, limit=2)] == [
        whole[0].tolist(),
        whole[len(whole) // 2].tolist(),
    ]
    assert len(cut(store_of(TEXT), 16, limit=1000)) == len(whole)


def test_bos_leads_each_piece_once_and_is_not_scored():
    store = store_of(TEXT[:126], bos=True)
    pieces = cut(store, 64)
    assert [p.tolist().count(257) for p in pieces] == [1, 1]
    assert perplexity(MODEL, store, 64)["groups"]["all"]["tokens"] == 126


def test_halves_add_up_and_bits_per_byte():
    result = perplexity(MODEL, store_of(TEXT), 64, window=8)
    groups = result["groups"]
    tokens = [groups[name]["tokens"] for name in ("first_half", "second_half")]
    assert tokens == [31 * result["n"], 32 * result["n"]]
    mean = sum(math.log(groups[name]["ppl"]) * groups[name]["tokens"] for name in ("first_half", "second_half"))
    assert mean / sum(tokens) == pytest.approx(math.log(result["value"]))
    assert result["bits_per_byte"] == pytest.approx(math.log2(result["value"]))  # one token a byte


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8))
def test_cross_window_is_the_definition(ids, window):
    expected = [False] * len(ids)
    for t in range(1, len(ids)):
        earlier = [s for s in range(1, t) if ids[s - 1] == ids[t - 1] and ids[s] == ids[t]]
        expected[t] = bool(earlier) and t - max(earlier) > window
    assert cross_window(np.asarray(ids), window).tolist() == expected


def test_interval_holds_the_value_and_narrows_with_documents():
    result = perplexity(MODEL, store_of(TEXT), 32)
    low, high = result["interval"]
    assert low < result["value"] < high
    rng = np.random.default_rng(0)
    few, many = (bootstrap_ratio(rng.normal(3, 1, n), np.ones(n)) for n in (10, 1000))
    assert few[1] - few[0] > 3 * (many[1] - many[0])
    assert bootstrap_ratio(np.ones(1), np.ones(1)) is None
    assert wilson(0, 10)[0] == 0.0
    assert wilson(0, 10)[1] == pytest.approx(0.278, abs=1e-3)
    assert wilson(10, 10)[1] == pytest.approx(1.0)


def test_a_model_against_itself_has_ratio_one():
    rows = perplexity(MODEL, store_of(TEXT), 64)["rows"]
    assert ratio(rows, rows) == {"value": 1.0, "interval": [1.0, 1.0], "p": 1.0, "n": len(rows)}


def test_too_short_says_how_much_is_needed():
    with pytest.raises(UserError, match="longest document has 5 tokens; context 64 needs at least 64"):
        perplexity(MODEL, store_of("hello"), 64)
    with pytest.raises(UserError, match="context is 1"):
        perplexity(MODEL, store_of("hello"), 1)
