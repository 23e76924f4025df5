"""How the SwiGLU memory starts: free matrices, low-rank ones, and the share it forgets."""

import pytest
import torch

from anchorlm.core import UserError
from anchorlm.memory import SwigluMemory
from anchorlm.rules import SwigluOptions


def test_a_low_rank_start_is_half_the_identity_plus_a_product_of_that_rank():
    memory = SwigluMemory(SwigluOptions(rank=3, ratio=1.5), 2, 8, 5)
    for name in ("w0", "w2"):
        rest = memory.first(name).detach() - 0.5 * torch.eye(12, 8)
        assert torch.linalg.matrix_rank(rest).tolist() == [3, 3]
    assert {n for n, _ in memory.named_parameters(recurse=False)} == {
        "w0_left", "w0_right", "w1", "w2_left", "w2_right",
    }  # fmt: skip


def test_decay_shrinks_what_no_token_renews():
    memory = SwigluMemory(SwigluOptions(decay=True), 2, 4, 5)
    memory.steps.bias.data.fill_(-1e4)
    state = memory.start(1)
    x = torch.zeros(1, 6, 5)
    written = memory.write(state, torch.zeros(1, 2, 6, 4), torch.zeros(1, 2, 6, 4), memory.tokens(x))
    share = torch.sigmoid(torch.tensor(-6.0))
    for name in ("w0", "w1", "w2"):
        torch.testing.assert_close(written[name], state[name] * (1 - share))


@pytest.mark.parametrize("values", [{"rank": -1}, {"rank": 1.5}, {"decay": 1}])
def test_wrong_options_are_named(values):
    with pytest.raises(UserError, match=next(iter(values))):
        SwigluOptions(**values).check("slots.a.options")
