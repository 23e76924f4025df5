"""The hand-written inner gradient, Newton-Schulz and the norms, against loops and autograd."""

import pytest
import torch

from anchorlm.ops import reference, swiglu
from builders import assert_near, normal

NAMES = reference.NAMES


def weights(hidden=7, width=5, heads=2):
    return swiglu.Weights(
        normal(1, heads, hidden, width, seed=1),
        normal(1, heads, width, hidden, seed=2),
        normal(1, heads, hidden, width, seed=3),
    )


def chunk(length, width=5, heads=2):
    k, v = normal(1, heads, length, width, seed=4), normal(1, heads, length, width, seed=5)
    return k, v, tuple(normal(1, heads, length, 1, seed=s).abs() for s in (6, 7, 8))


def as_matrices(w, head):
    return {name: getattr(w, name)[0, head] for name in NAMES}


def test_apply_equals_the_formula():
    w, (k, _, _) = weights(), chunk(6)
    for head in range(2):
        slow = torch.stack([reference.swiglu(as_matrices(w, head), u) for u in k[0, head]])
        assert_near(swiglu.apply(w, k)[0, head], slow, 1e-12)


@pytest.mark.parametrize("loss", ["dot", "squared"])
@pytest.mark.parametrize("length", [1, 2, 13])
def test_descent_is_minus_the_autograd_gradient(loss, length):
    w, (k, v, steps) = weights(), chunk(length)
    fast = swiglu.descent(w, k, v, steps, loss)
    for head in range(2):
        table = torch.stack([s[0, head, :, 0] for s in steps], -1)
        slow = reference.swiglu_descent(as_matrices(w, head), k[0, head], v[0, head], table, loss)
        for name in NAMES:
            assert_near(getattr(fast, name)[0, head], slow[name], 1e-12, name)


@pytest.mark.parametrize("loss", ["dot", "squared"])
def test_descent_has_exact_second_derivatives(loss):
    """The outer gradient runs through the inner one."""
    w, (k, v, steps) = weights(3, 2, 1), chunk(2, 2, 1)
    inputs = [t.clone().requires_grad_() for t in (*w, k, v, *steps)]

    def update(w0, w1, w2, k, v, e0, e1, e2):
        return tuple(swiglu.descent(swiglu.Weights(w0, w1, w2), k, v, (e0, e1, e2), loss))

    assert torch.autograd.gradcheck(update, inputs)


@pytest.mark.parametrize("size", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_newton_schulz_acts_on_singular_values(size):
    m = normal(2, *size)
    expected = torch.stack([reference.newton_schulz(one) for one in m])
    assert_near(swiglu.orthogonalise(m), expected, 1e-10)


def spectrum(values, size=64):
    left, right = (torch.linalg.qr(normal(size, size, seed=s))[0] for s in (1, 2))
    return (left @ torch.diag(values) @ right).float()


def test_newton_schulz_bounds():
    """fp32: from 0.003 of the Frobenius norm up, every singular value ends in [0.97, 1.15]."""
    values = torch.logspace(-3, 0, 64, dtype=torch.float64)
    values[values < 0.0031 * values.norm()] = 0.0031 * values.norm()
    out = torch.linalg.svdvals(swiglu.orthogonalise(spectrum(values)))
    assert 0.97 <= float(out.min()) and float(out.max()) <= 1.15


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e4])
def test_newton_schulz_is_scale_free(scale):
    m = normal(8, 8)
    m = m / m.norm()
    assert_near(swiglu.orthogonalise(m * scale), swiglu.orthogonalise(m), 0.1 if scale == 1e-6 else 2e-5)


def test_newton_schulz_of_zero_is_zero_and_finite():
    assert torch.equal(swiglu.orthogonalise(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_newton_schulz_works_in_fp32_on_bf16():
    m = normal(32, 32, dtype=torch.float32)
    out = swiglu.orthogonalise(m.bfloat16())
    assert out.dtype == torch.bfloat16
    assert_near(out.float(), swiglu.orthogonalise(m.bfloat16().float()), 5e-3)


def test_limit_keeps_the_direction_and_bounds_the_length():
    update, reference_weights = 3 * normal(2, 2, 4, 4), normal(2, 4, 4, seed=9)
    limited = swiglu.limit_norm(update, reference_weights, 0.5)
    assert_near(limited.norm(dim=(-2, -1)), (0.5 * reference_weights.norm(dim=(-2, -1))).expand(2, -1), 1e-12)
    assert_near(
        limited / limited.norm(dim=(-2, -1), keepdim=True), update / update.norm(dim=(-2, -1), keepdim=True), 1e-12
    )
    small = 1e-3 * update
    assert torch.equal(swiglu.limit_norm(small, reference_weights, 0.5), small)
    zero = torch.zeros_like(update)
    assert torch.equal(swiglu.limit_norm(zero, reference_weights, 0.5), zero)


def test_rows_take_the_given_norms_and_zero_rows_stay_finite():
    w, norms = normal(2, 3, 4), normal(2, 3, 1, seed=9).abs()
    assert_near(swiglu.scale_rows(w, norms).norm(dim=-1, keepdim=True), norms, 1e-12)
    assert bool(torch.isfinite(swiglu.scale_rows(torch.zeros(2, 3), torch.ones(2, 1))).all())
