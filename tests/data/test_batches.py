"""Batches: every row once an epoch, exact resume at any batch, document starts, padding, mixing, ranks."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlm.core import UserError
from anchorlm.data import Cursor, DocumentSource, Mixture, PackedSource, Row, TokenStore, batches


def make_store(lengths, eos=0):
    pieces = [np.r_[np.arange(n) + 1 + 100 * i, eos] for i, n in enumerate(lengths)]
    offsets = np.cumsum([0, *map(len, pieces)])
    return TokenStore(
        np.concatenate(pieces).astype(np.uint16), offsets, np.asarray(lengths), tuple("abcdefgh"[: len(lengths)]),
        "content", "tokenizer", eos, None,
    )  # fmt: skip


class Counter:
    """A generated source: its rows carry the index and a random draw."""

    name, size = "counter", None

    def sequence(self, index, rng):
        ids = np.asarray([1000 + index, int(rng.integers(500)), 1, 2], np.int64)
        return Row(ids, np.ones(4, bool), np.asarray([True, False, False, False]))


def test_every_row_once_per_epoch_in_another_order():
    store = make_store([39])
    rows = [b.input_ids[0].tolist() for b in islice(batches(store, 4, 1, seed=3), 20)]
    first, second = rows[:10], rows[10:]
    assert sorted(first) == sorted(second) == sorted(store.tokens.reshape(10, 4).tolist())
    assert first != second


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 5), stop=st.integers(1, 12), size=st.integers(1, 3), other=st.booleans())
def test_resume_is_exact(seed, stop, size, other):
    store = make_store([17, 6, 22])
    data = Mixture([PackedSource(store, 4), Counter()], [0.7, 0.3]) if other else store
    straight = list(islice(batches(data, 4, size, seed), stop + 5))
    cursor = Cursor.from_dict(straight[stop - 1].cursor.to_dict())
    resumed = list(islice(batches(data, 4, size, seed, cursor), 5))
    for a, b in zip(straight[stop:], resumed, strict=True):
        assert a.cursor == b.cursor
        assert all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


def test_document_starts_mark_each_document_and_the_row():
    store = make_store([5, 2, 8])
    rows = [PackedSource(store, 4).sequence(i, np.random.default_rng(0)) for i in range(4)]
    starts = np.concatenate([row.starts for row in rows])
    expected = set(store.starts.tolist()) | {0, 4, 8, 12}
    assert set(np.flatnonzero(starts)) == expected


def test_document_rows_are_padded_on_the_right_and_long_documents_are_split():
    source = DocumentSource(make_store([2, 5]), 4)
    rows = [source.sequence(i, np.random.default_rng(0)) for i in range(source.size)]
    assert [row.mask.sum() for row in rows] == [3, 4, 2]
    assert rows[0].ids.tolist() == [1, 2, 0, 0]
    assert all(row.starts.tolist() == [True, False, False, False] for row in rows)


def test_mixture_follows_the_weights():
    data = Mixture([PackedSource(make_store([39]), 4), Counter()], [0.8, 0.2])
    batch = next(batches(data, 4, 500, seed=1))
    share = (batch.input_ids[:, 0] >= 1000).float().mean()
    assert 0.15 < share < 0.25


def test_two_processes_together_see_what_one_sees():
    data = Mixture([PackedSource(make_store([39]), 4), Counter()], [0.5, 0.5])
    whole = list(islice(batches(data, 4, 4, seed=2), 4))
    parts = [list(islice(batches(data, 4, 2, seed=2, rank=r, world=2), 4)) for r in range(2)]
    for step in range(4):
        joined = torch.cat([parts[0][step].input_ids, parts[1][step].input_ids])
        assert torch.equal(joined, whole[step].input_ids)
        assert parts[0][step].cursor == parts[1][step].cursor == whole[step].cursor


def test_a_short_text_says_how_much_is_needed():
    with pytest.raises(UserError, match="data has 4 tokens; rows of 64 need at least 64"):
        next(batches(make_store([3]), 64, 1))


def test_a_cursor_of_another_run_is_refused():
    store = make_store([39])
    cursor = next(batches(store, 4, 1, seed=0)).cursor
    with pytest.raises(UserError, match="other data, length, mix or seed"):
        next(batches(store, 8, 1, 0, cursor))
    with pytest.raises(UserError, match="packing 'best'"):
        next(batches(store, 4, 1, packing="best"))
    with pytest.raises(UserError, match="mix weights"):
        Mixture([Counter()], [0.0])
