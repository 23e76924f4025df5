"""Debiased CKA against a double loop over the kernel matrices, and its known answers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlm.analyze import cka_matrix, debiased_cka, mean_cosine
from anchorlm.core import UserError


def normal(rows, columns, seed):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def hsic_by_loops(x, y):
    """The unbiased estimator as it is written down, entry by entry."""
    n = len(x)
    k, m = ([[0.0 if i == j else float(v[i] @ v[j]) for j in range(n)] for i in range(n)] for v in (x, y))
    trace = sum(k[i][j] * m[j][i] for i in range(n) for j in range(n))
    sums = sum(map(sum, k)) * sum(map(sum, m)) / ((n - 1) * (n - 2))
    mixed = sum(k[i][j] * m[j][h] for i in range(n) for j in range(n) for h in range(n)) * 2 / (n - 2)
    return (trace + sums - mixed) / (n * (n - 3))


@given(rows=st.integers(4, 9), p=st.integers(1, 5), q=st.integers(1, 5), seed=st.integers(0, 99))
def test_it_equals_the_double_loop(rows, p, q, seed):
    x, y = normal(rows, p, seed), normal(rows, q, seed + 1) + 2
    own = hsic_by_loops(x, x) * hsic_by_loops(y, y)
    if own > 1e-6:  # tiny samples of one feature may have an estimate of 0 or below; the ratio means nothing then
        assert debiased_cka(x, y) == pytest.approx(hsic_by_loops(x, y) / own**0.5, rel=1e-8, abs=1e-10)


def test_independent_data_score_about_zero_and_a_rotation_one():
    x, y = normal(60, 40, 0), normal(60, 40, 1)
    assert abs(debiased_cka(x, y)) < 0.05
    turn = torch.linalg.qr(normal(40, 40, 2))[0]
    assert debiased_cka(x, 3 * x @ turn + 5) == pytest.approx(1, abs=1e-12)
    assert abs(mean_cosine(x, x @ turn)) < 0.2
    assert mean_cosine(x, x, heads=4) == pytest.approx(1)


@pytest.mark.parametrize("shapes", [((3, 2), (3, 2)), ((5, 2), (4, 2)), ((5,), (5,))])
def test_wrong_shapes_are_named(shapes):
    with pytest.raises(UserError, match="CKA"):
        debiased_cka(*(torch.zeros(shape) for shape in shapes))


def test_every_pair_at_once_equals_pair_by_pair():
    sets = [normal(30, 6, 0), normal(30, 9, 1), normal(30, 6, 0) @ normal(6, 4, 2), 5 - 2 * normal(30, 6, 0)]
    matrix = cka_matrix(torch.stack([x @ x.T for x in sets]))
    pairs = [[debiased_cka(x, y) for y in sets] for x in sets]
    torch.testing.assert_close(matrix, torch.tensor(pairs, dtype=torch.float64), atol=1e-10, rtol=0)
    own = hsic_by_loops(sets[0], sets[0]) * hsic_by_loops(sets[1], sets[1])
    looped = hsic_by_loops(sets[0], sets[1]) / own**0.5
    assert float(matrix[0, 1]) == pytest.approx(looped, abs=1e-10)
    with pytest.raises(UserError, match="at least 4 rows"):
        cka_matrix(torch.zeros(2, 3, 3))
