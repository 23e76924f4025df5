"""The delta rule over a chunk at once against the token loop."""

import pytest
import torch

from anchorlm.ops import reference
from anchorlm.ops.delta import delta_chunk
from builders import assert_near, normal


@pytest.mark.parametrize("length", [1, 2, 7, 16, 31])
def test_values_and_gradients_equal_the_token_loop(length):
    inputs = [normal(2, 3, *size, seed=s) for s, size in enumerate([(5, 5), (length, 5), (length, 5), (length, 1)])]
    inputs[1] = torch.nn.functional.normalize(inputs[1], dim=-1)
    inputs[3] = torch.sigmoid(inputs[3])
    state, k, v, step = (t.requires_grad_() for t in inputs)
    fast = delta_chunk(state, k, v, step)
    slow = torch.stack(
        [
            torch.stack([reference.delta_update(state[b, h], k[b, h], v[b, h], step[b, h]) for h in range(3)])
            for b in range(2)
        ]
    )
    assert_near(fast, slow, 1e-12)
    weight = normal(2, 3, 5, 5, seed=9)
    ours = torch.autograd.grad((fast * weight).sum(), (state, k, v, step))
    theirs = torch.autograd.grad((slow * weight).sum(), (state, k, v, step))
    for a, b in zip(ours, theirs, strict=True):
        assert_near(a, b, 1e-11)


def test_a_full_step_on_a_unit_key_stores_its_value_exactly():
    k = torch.nn.functional.normalize(normal(1, 1, 1, 6), dim=-1)
    v, state = normal(1, 1, 1, 6, seed=2), normal(1, 1, 6, 6, seed=3)
    after = delta_chunk(state, k, v, torch.ones(1, 1, 1, 1, dtype=torch.float64))
    assert_near(k @ after.transpose(-1, -2), v, 1e-12)
