"""Means over counted tokens: no padding, packing or split into batches may change them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlm.train.losses import CrossEntropy, Transfer, View, linear_cross_entropy, next_token_pairs, ratio


def pairs(ids, mask=None, starts=None):
    ids = torch.tensor(ids)
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    source, target = next_token_pairs(ids, mask, None if starts is None else torch.tensor(starts, dtype=torch.bool))
    return source.tolist(), target.tolist()


def test_pairs_of_full_rows():
    assert pairs([[5, 6, 7], [8, 9, 10]]) == ([0, 1, 3, 4], [6, 7, 9, 10])


def test_pairs_step_over_padding_anywhere():
    assert pairs([[0, 5, 0, 6, 7, 0]], [[0, 1, 0, 1, 1, 0]]) == ([1, 3], [6, 7])


def test_a_document_start_is_never_a_target():
    assert pairs([[5, 6, 7, 8]], starts=[[1, 0, 1, 0]]) == ([0, 2], [6, 8])


@pytest.mark.parametrize("ids", [[[3]], [[3], [4]]])
def test_no_pair_in_one_token(ids):
    assert pairs(ids) == ([], [])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_padding_changes_no_pair(mask, left, right):
    ids = list(range(10, 10 + len(mask)))
    kept = [[i for i, m in zip(ids, mask, strict=True) if m]]
    plain = pairs(kept)[1] if kept[0] else []
    row = [[0] * left + ids + [0] * right]
    assert pairs(row, [[0] * left + mask + [0] * right])[1] == plain


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31])
@pytest.mark.parametrize("head_trains", [False, True])
def test_chunked_cross_entropy_equals_the_plain_one(count, head_trains):
    torch.manual_seed(count)
    hidden = torch.randn(count, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=head_trains)
    targets = torch.randint(0, 11, (count,))
    inputs = [hidden, weight] if head_trains else [hidden]
    plain = F.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    chunked = linear_cross_entropy(hidden, weight, targets, elements=8 * 11)
    torch.testing.assert_close(chunked, plain)
    for a, b in zip(torch.autograd.grad(3 * chunked, inputs), torch.autograd.grad(3 * plain, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_cross_entropy_of_bf16_is_summed_in_fp32():
    hidden, weight = torch.randn(40, 8).bfloat16(), torch.randn(30, 8).bfloat16()
    value = linear_cross_entropy(hidden, weight, torch.zeros(40, dtype=torch.long))
    assert value.dtype == torch.float32


def view_of(hidden, outputs, teacher, ids, mask):
    return View(ids, mask, None, hidden, {0: outputs}, {0: teacher})


def losses(views, head):
    terms = (Transfer((0,)), CrossEntropy(head))
    totals = {t.name: sum(t.totals(v) for v in views) for t in terms}
    return {t.name: float(sum(ratio(t.sums(v), totals[t.name]) for v in views).detach()) for t in terms}


def test_mean_is_over_counted_tokens_however_they_are_cut():
    """Two rows of different lengths: padded together, or each alone in its own accumulated batch."""
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 9, bias=False).double()
    rows = [tuple(torch.randn(1, n, 4, dtype=torch.float64) for _ in range(3)) for n in (7, 3)]
    ids = [torch.randint(0, 9, (1, n)) for n in (7, 3)]
    alone = [view_of(*row, i, torch.ones_like(i)) for row, i in zip(rows, ids, strict=True)]
    short = [F.pad(part, (0, 0, 2, 2), value=float("nan")) for part in rows[1]]
    joined = [torch.cat(pair) for pair in zip(rows[0], short, strict=True)]
    mask = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 0, 0]])
    together = view_of(*joined, torch.cat([ids[0], F.pad(ids[1], (2, 2))]), mask)
    assert losses(alone, head) == pytest.approx(losses([together], head), rel=1e-12)


def test_padding_takes_no_gradient_even_where_it_is_nan():
    student = torch.full((1, 3, 2), float("nan"))
    student[0, 1] = 1.0
    student.requires_grad_()
    view = View(torch.zeros(1, 3), torch.tensor([[0, 1, 0]]), outputs={0: student}, teacher={0: torch.zeros(1, 3, 2)})
    Transfer((0,)).sums(view).sum().backward()
    assert student.grad[0].tolist() == [[0, 0], [2, 2], [0, 0]]


def test_no_counted_token_is_a_loss_of_zero():
    empty = view_of(*(torch.ones(1, 3, 4) for _ in range(3)), torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3))
    assert losses([empty], torch.nn.Linear(4, 9)) == {"mse": 0.0, "ce": 0.0}
