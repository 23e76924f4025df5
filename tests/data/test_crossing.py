"""Cross-window targets against a plain loop over bigrams."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlm.data.crossing import cross_window


def plain_loop(ids, window, document):
    latest, found = {}, []
    for t in range(len(ids)):
        inside = t > 0 and document[t] == document[t - 1]
        bigram = (document[t], ids[t - 1], ids[t])
        found.append(inside and bigram in latest and t - latest[bigram] > window)
        if inside:
            latest[bigram] = t
    return found


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60), st.integers(1, 9))
def test_equals_the_loop(tokens, window):
    ids = np.array([token for token, _ in tokens], np.int64)
    document = np.cumsum([begins and t % 3 == 0 for t, (_, begins) in enumerate(tokens)]).astype(np.int64)
    assert cross_window(ids, window, document).tolist() == plain_loop(ids.tolist(), window, document.tolist())
    whole = np.zeros(len(ids), np.int64)
    assert cross_window(ids, window).tolist() == plain_loop(ids.tolist(), window, whole.tolist())


def test_only_the_latest_occurrence_counts():
    ids = np.array([1, 2, 9, 9, 9, 1, 2, 9, 1, 2])
    assert np.flatnonzero(cross_window(ids, 3)).tolist() == [6, 7]
    assert np.flatnonzero(cross_window(ids, 5)).tolist() == []


def test_a_bigram_across_documents_is_none():
    ids, document = np.array([1, 2, 1, 2, 1, 2]), np.array([0, 0, 0, 1, 1, 1])
    assert np.flatnonzero(cross_window(ids, 1, document)).tolist() == []
    assert np.flatnonzero(cross_window(ids, 1)).tolist() == [3, 4, 5]
