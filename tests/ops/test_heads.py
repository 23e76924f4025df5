"""Heads taken out and put back: the identity on all of them, whatever the groups, and what has no mass weighs all."""

import pytest
import torch

from anchorlm.ops.heads import combine, pick
from anchorlm.ops.partials import Partial, join
from builders import assert_near, normal


@pytest.mark.parametrize("groups", [[(0, 1, 2)], [(0, 2), (1,)], [(2,), (0,), (1,)], [(0,), (1, 2)]], ids=str)
def test_what_is_picked_comes_back_in_order(groups):
    x = normal(2, 6, 5, 4)
    back = combine({heads: Partial(pick(x, heads, 3)) for heads in groups})
    assert torch.equal(back.answer, x) and back.mass is None
    assert torch.equal(pick(x, (0, 2), 3), x[:, [0, 1, 4, 5]])
    assert pick(x, (0, 1, 2), 3) is x


def test_a_group_without_a_mass_is_left_alone_by_what_is_joined():
    """And passes gradients as if nothing had been joined."""
    x = normal(1, 4, 3, 2).requires_grad_()
    mass, peak = normal(1, 2, 3, 1, seed=7).abs(), normal(1, 2, 3, 1, seed=6)
    whole = combine({(0,): Partial(pick(x, (0,), 2)), (1,): Partial(pick(x, (1,), 2), mass, peak)})
    more = Partial(normal(1, 4, 3, 2, seed=8), *(normal(1, 4, 3, 1, seed=s).abs().requires_grad_() for s in (9, 10)))
    both = join(whole, more)
    assert torch.equal(both.answer[:, :2], x[:, :2])
    alone = join(Partial(x[:, 2:], mass, peak), Partial(*(part[:, 2:] for part in more)))
    assert torch.equal(both.answer[:, 2:], alone.answer)
    to_x, to_mass = torch.autograd.grad(both.answer.square().sum(), (x, more.mass))
    assert_near(to_x[:, :2], 2 * x[:, :2])
    assert not to_mass[:, :2].any() and bool(to_mass[:, 2:].any())
