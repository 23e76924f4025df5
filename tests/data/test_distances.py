"""Facts stand exactly as far before their answers as the text says, and nothing else of it changes."""

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.data import Document, TokenStore
from anchorlm.data.distances import recall_text
from anchorlm.data.recall import RecallSource
from small import char_tokenizer

TOKENIZER = char_tokenizer(bos=True)
STORE = TokenStore.from_documents([Document("a", "The ship lay still. Nobody on the quay spoke. " * 90)], TOKENIZER)
BINS = [(0, 300), (300, 600), (600, 1200), (1200, 1999)]


def source(length=2000):
    return RecallSource(STORE, TOKENIZER, length)


def test_distances_are_what_they_say():
    found = set()
    for seed in range(6):
        made = recall_text(source(), BINS, np.random.default_rng(seed))
        assert len(made.ids) == 2000 and made.ids[0] == TOKENIZER.bos_token_id
        text = TOKENIZER.decode(made.ids.tolist()).removeprefix("<bos>")
        for query, (low, high) in zip(made.queries, BINS, strict=True):
            assert low < query.distance <= high
            begin, end = int(query.targets[0]) - 1, int(query.targets[-1])  # one character a token, after the bos
            answer, last = text[begin:end].strip(), begin - query.distance
            assert text[last] == "." and answer in text[max(0, last - 120) : last + 1]
            found.add(query.distance)
    assert len(found) > 20


def test_a_fact_in_the_window_is_there_whole():
    made = recall_text(source(), BINS, np.random.default_rng(1))
    text = TOKENIZER.decode(made.ids.tolist()).removeprefix("<bos>")
    at = int(made.queries[0].targets[0]) - 1
    whole = text[at - 300 : at]
    answer = text[at : int(made.queries[0].targets[-1])].strip()
    assert any(answer in sentence for sentence in whole.split("\n\n")[0].split(". "))


def test_the_same_seed_gives_the_same_text():
    first, second = (recall_text(source(), BINS, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first.ids, second.ids)


def test_no_room_is_one_line():
    with pytest.raises(UserError, match="context is 300; a fact in each of 2 ranges of distance, the first up to 20"):
        recall_text(source(300), [(0, 20), (20, 299)], np.random.default_rng(0))
