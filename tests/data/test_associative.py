"""Associative recall: every pair stands twice at its distance, and nothing else tells the answer."""

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.data.associative import AssociativeRecall, single_tokens
from small import char_tokenizer

SOURCE = AssociativeRecall(char_tokenizer())
NEWLINE, COLON = char_tokenizer()("\n:")["input_ids"]


@pytest.mark.parametrize(
    ("length", "distances"), [(128, [4, 8, 120]), (127, [120]), (800, [4, 32, 256, 600, 796]), (32, [4, 8, 16, 12])]
)
def test_each_pair_stands_twice_at_its_distance(length, distances):
    for seed in range(20):
        made = SOURCE.make(length, distances, np.random.default_rng(seed))
        assert len(made.ids) == length // 4 * 4 and sorted(made.distances) == sorted(distances)
        assert list(made.queries) == sorted(made.queries)
        for place, distance in zip(made.queries, made.distances, strict=True):
            key, colon, value = made.ids[place - 1 : place + 2]
            assert colon == COLON and made.ids[place - 2] == NEWLINE
            assert np.flatnonzero(made.ids == key).tolist() == [place - 1 - distance, place - 1]
            assert np.flatnonzero(made.ids == value).tolist() == [place + 1 - distance, place + 1]


def test_distances_spread_over_the_whole_length():
    found = np.stack([SOURCE.spread(2000, 12, np.random.default_rng(i)) for i in range(50)])
    assert (found % 4 == 0).all() and found.min() == 4 and 1800 < found.max() <= 1996
    assert (np.diff(np.log(found.mean(0))) > 0).all()


def test_a_leading_bos_is_no_line():
    made = AssociativeRecall(char_tokenizer(bos=True)).make(201, [8, 192], np.random.default_rng(0))
    assert made.ids[0] == 257 and (made.ids == 257).sum() == 1 and made.ids[1] == NEWLINE


def test_words_of_one_token_or_any_token():
    assert set(single_tokens(char_tokenizer())) == set(range(256))
    assert not {COLON, NEWLINE} & set(SOURCE.words) and len(SOURCE.words) == 254


@pytest.mark.data
def test_words_of_a_real_tokenizer_are_words(smollm2):
    words = single_tokens(smollm2.tokenizer)
    assert len(words) == 4096
    assert all(smollm2.tokenizer.decode([i]).strip().isalpha() for i in words[:100])


@pytest.mark.parametrize(
    ("length", "distances", "message"),
    [
        (20, [4, 8, 12], "length 20 is too short for 3 queries; it needs 24"),
        (80, [6], "multiples of 4, the tokens of a line, up to 76"),
        (80, [80], "multiples of 4, the tokens of a line, up to 76"),
        (48, [44, 44], r"2 queries \[11, 11\] lines back do not fit into 12 lines"),
        (4000, [4] * 100, "has 254 words of one token; 100 queries need 300"),
    ],
)
def test_bad_input(length, distances, message):
    with pytest.raises(UserError, match=message):
        SOURCE.make(length, distances, np.random.default_rng(0))
