"""Associative recall: every pair stands twice at its distance, and nothing else tells the answer."""

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.data.associative import AssociativeRecall, single_tokens
from small import char_tokenizer

SOURCE = AssociativeRecall(char_tokenizer())


@pytest.mark.parametrize(
    ("length", "distances"), [(64, [2, 4, 60]), (63, [60]), (400, [2, 16, 128, 300, 398]), (16, [2, 4, 8, 6])]
)
def test_each_pair_stands_twice_at_its_distance(length, distances):
    for seed in range(20):
        made = SOURCE.make(length, distances, np.random.default_rng(seed))
        assert len(made.ids) == length and sorted(made.distances) == sorted(distances)
        assert list(made.queries) == sorted(made.queries)
        for place, distance in zip(made.queries, made.distances, strict=True):
            key, value = made.ids[place], made.ids[place + 1]
            assert np.flatnonzero(made.ids == key).tolist() == [place - distance, place]
            assert np.flatnonzero(made.ids == value).tolist() == [place - distance + 1, place + 1]


def test_distances_spread_over_the_whole_length():
    found = np.stack([SOURCE.spread(1000, 12, np.random.default_rng(i)) for i in range(50)])
    assert (found % 2 == 0).all() and found.min() == 2 and 900 < found.max() <= 998
    assert (np.diff(np.log(found.mean(0))) > 0).all()


def test_a_leading_bos_is_no_pair():
    made = AssociativeRecall(char_tokenizer(bos=True)).make(101, [4, 96], np.random.default_rng(0))
    assert made.ids[0] == 257 and (made.ids == 257).sum() == 1 and made.queries.max() < 100


def test_words_of_one_token_or_any_token():
    assert set(single_tokens(char_tokenizer())) == set(range(256))


@pytest.mark.data
def test_words_of_a_real_tokenizer_are_words(smollm2):
    words = single_tokens(smollm2.tokenizer)
    assert len(words) > 5000
    assert all(smollm2.tokenizer.decode([i]).strip().isalpha() for i in words[:100])


@pytest.mark.parametrize(
    ("length", "distances", "message"),
    [
        (10, [2, 4, 6], "length 10 is too short for 3 queries; it needs 12"),
        (40, [3], "must be even, from 2 to 38"),
        (40, [40], "must be even, from 2 to 38"),
        (24, [22, 22], r"2 queries at the distances \[22, 22\] do not fit into 24 tokens"),
        (4000, [2] * 100, "has 256 words of one token; 100 queries need 300"),
    ],
)
def test_bad_input(length, distances, message):
    with pytest.raises(UserError, match=message):
        SOURCE.make(length, distances, np.random.default_rng(0))
