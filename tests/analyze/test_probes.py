"""Distances, bins and needles by brute force."""

import numpy as np
import pytest

from anchorlm.analyze.probes import NEEDLE, TEXT, distance_bins, needle_probe, reuse_distance, rounds, text_probe
from anchorlm.core import UserError
from anchorlm.data import Document, TokenStore
from anchorlm.data.crossing import cross_window
from anchorlm.data.needles import Needles
from planted import brute_distance
from small import char_tokenizer


def letters(length, seed=0, kinds=5):
    return np.random.default_rng(seed).integers(kinds, size=length)


@pytest.mark.parametrize("seed", range(4))
def test_distances_equal_a_search_backwards(seed):
    ids = letters(120, seed)
    assert np.array_equal(reuse_distance(ids), brute_distance(ids))


def test_bins_double_and_cover_every_distance_once():
    assert distance_bins(8, 40) == {"0-8": (0, 8), "8-16": (8, 16), "16-32": (16, 32), "32-39": (32, 39)}
    probe = text_probe(letters(200), 8, 200)
    bins = [probe.groups[name] for name in distance_bins(8, 200)]
    assert np.array_equal(sum(group.astype(int) for group in [probe.groups["new"], *bins]), np.ones(199, int))
    assert all(group.any() for group in bins[:3])
    assert np.array_equal(probe.groups["beyond"], cross_window(probe.ids, 8)[1:])
    far = brute_distance(probe.ids)[1:]
    assert np.array_equal(probe.groups["16-32"], (far > 16) & (far <= 32))


def test_a_needle_ends_with_its_answer_and_asks_for_that_alone():
    tokenizer = char_tokenizer()
    store = TokenStore.from_documents([Document("d", "one two. three four. " * 60)], tokenizer)
    probe = needle_probe(Needles(store, tokenizer, templates="train"), 300, 0.2, np.random.default_rng(0))
    answer = tokenizer.decode(probe.ids[probe.targets].tolist())
    text = tokenizer.decode(probe.ids.tolist())
    assert len(answer) == 7 and answer.isdigit() and text.endswith(answer) and text.count(answer) == 2
    assert probe.exact and list(probe.groups) == [NEEDLE] and len(probe.ids) == 300 + len(" " + answer)


def test_facts_stand_before_the_last_window():
    tokenizer = char_tokenizer()
    store = TokenStore.from_documents([Document("d", "one two. three four. " * 200)], tokenizer)
    for _, needle in rounds(store, tokenizer, 400, 64, 5, True, seed=0):
        fact = tokenizer.decode(needle.ids.tolist()).index(tokenizer.decode(needle.ids[needle.targets].tolist()))
        assert needle.targets[0] - fact > 64


def test_a_short_text_says_what_is_there_and_what_is_needed():
    store = TokenStore.from_documents([Document("d", "abc " * 40)], char_tokenizer())
    assert len(rounds(store, None, 80, 8, 4, False, 0)) == 2
    with pytest.raises(UserError, match=r"it has 160 tokens.*context 90 needs 180, as 2 pieces of 90"):
        rounds(store, None, 90, 8, 4, False, 0)
    assert TEXT == "all"
