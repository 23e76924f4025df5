"""The MLP's hand-written inner gradient against autograd and loops."""

import pytest
import torch

from anchorlm.ops import mlp, reference
from builders import assert_near, normal


def weights(depth, width=4, dim=5, heads=2):
    widths = [dim, *[width] * (depth - 1), dim]
    return [normal(1, heads, after, before, seed=i) for i, (before, after) in enumerate(zip(widths, widths[1:]))]


def named(found, head):
    return {f"w{i}": weight[0, head] for i, weight in enumerate(found)}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 7])
def test_answers_and_descent_equal_the_token_loop(depth, length):
    w, k, v = weights(depth), normal(1, 2, length, 5, seed=11), normal(1, 2, length, 5, seed=12)
    steps = normal(1, 2, length, 1, seed=13).abs()
    fast, answers = mlp.descent(w, k, v, steps), mlp.apply(w, k)
    for head in range(2):
        own = named(w, head)
        assert_near(answers[0, head], torch.stack([reference.mlp(own, u) for u in k[0, head]]), 1e-12)
        zero = {name: torch.zeros_like(value) for name, value in own.items()}
        given = (k[0, head], v[0, head], steps[0, head], {}, 1e9, own)
        slow = reference.mlp_write(zero, own, *given)
        for name, update in zip(slow, fast, strict=True):
            assert_near(update[0, head], slow[name], 1e-12, name)


def test_descent_has_exact_second_derivatives():
    w = [x.requires_grad_() for x in weights(3, width=2, dim=2, heads=1)]
    given = [normal(1, 1, 3, n, seed=20 + n).requires_grad_() for n in (2, 2, 1)]
    assert torch.autograd.gradcheck(lambda *x: tuple(mlp.descent(x[:3], *x[3:])), (*w, *given))
