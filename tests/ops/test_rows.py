"""Padded and packed input as plain rows, and back."""

import torch

from anchorlm.ops.rows import arrange
from anchorlm.state import ModelState


def mask(*rows):
    return torch.tensor([[int(c) for c in row] for row in rows])


def rows_of(x, *args):
    rows = arrange(*args)
    return rows, [rows.gather(x[..., None].double())[i, :n, 0].tolist() for i, n in enumerate(rows.length)]


def test_plain_input_needs_no_rows():
    assert arrange(None, None) is None
    assert arrange(mask("111", "111"), torch.zeros(2, 3, dtype=torch.bool)) is None


def test_holes_on_any_side_close_up():
    x = torch.arange(1, 11).view(2, 5)
    rows, texts = rows_of(x, mask("01011", "11000"), None)
    assert texts == [[2, 4, 5], [6, 7]]
    back = rows.scatter(rows.gather(x[..., None].double()))[..., 0]
    assert back.tolist() == [[0, 2, 0, 4, 5], [6, 7, 0, 0, 0]]


def test_documents_become_rows_of_their_own_and_hand_back_the_last():
    x = torch.arange(1, 13).view(2, 6)
    starts = mask("100010", "001000").bool()
    rows, texts = rows_of(x, mask("111111", "111110"), starts)
    assert texts == [[1, 2, 3, 4], [5, 6], [7, 8], [9, 10, 11]]
    assert rows.source.tolist() == [0, 0, 1, 1]
    assert rows.fresh.tolist() == [True, True, False, True]
    state = ModelState(torch.tensor([7, 9]), ())
    assert rows.enter(state).position.tolist() == [0, 0, 9, 0]
    assert rows.leave(ModelState(torch.tensor([4, 2, 11, 3]), ())).position.tolist() == [2, 3]


def test_a_row_without_a_token_stays():
    rows, texts = rows_of(torch.arange(1, 7).view(2, 3), mask("000", "101"), None)
    assert texts == [[], [4, 6]]
    assert rows.enter(ModelState(torch.tensor([5, 6]), ())).position.tolist() == [5, 6]


def test_what_is_masked_is_dropped_even_when_it_is_not_a_number():
    x = torch.tensor([[[1.0], [float("nan")], [2.0]]], requires_grad=True)
    rows = arrange(mask("101"), None)
    kept = rows.gather(x)
    assert kept[0, :2, 0].tolist() == [1.0, 2.0]
    kept.sum().backward()
    assert x.grad[0, :, 0].tolist() == [1.0, 0.0, 1.0]


def test_a_document_that_begins_at_a_masked_token_begins_at_the_next_real_one():
    mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]])
    starts = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]).bool()
    rows = arrange(mask, starts)
    assert rows.length == (2, 2, 4, 0)
    assert rows.fresh.tolist() == [False, True, False, True]
    assert rows.last.tolist() == [1, 3]
