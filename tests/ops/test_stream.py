"""Writes to a matrix state in pieces, against the token loop: values, states, gradients; and what must not overflow."""

import pytest
import torch
from torch.nn import functional as F

from anchorlm.memory import Memory
from anchorlm.memory.linear_attention import Timing
from anchorlm.ops import reference_linear as reference
from anchorlm.ops import stream
from builders import assert_near, normal, slot

SIZE = 4
LENGTHS = [1, SIZE - 1, SIZE, SIZE + 1, 13]
WIDTHS = {"none": 0, "scalar": 1, "channel": 3}


def inputs(tokens, kind, heads=2, readers=2, width=3):
    k, v = normal(2, heads, tokens, 3, seed=1), normal(2, heads, tokens, 5, seed=2)
    q, start = normal(2, heads, readers, tokens, 3, seed=3), normal(2, heads, 3, 5, seed=4)
    decay = F.logsigmoid(normal(2, heads, tokens, width, seed=5)) if kind != "none" else None
    return [x if x is None else x.requires_grad_() for x in (k, v, q, start, decay)]


def looped(k, v, q, start, decay, own):
    """Answers and the last state by the loop, row by row and head by head."""
    answers, last = torch.zeros(*q.shape[:4], v.shape[-1], dtype=q.dtype), torch.zeros_like(start)
    shares = torch.ones_like(k) if decay is None else torch.exp(decay).expand_as(k)
    rows = []
    for b in range(k.shape[0]):
        for h in range(k.shape[1]):
            states = reference.decayed_states(start[b, h], k[b, h], v[b, h], shares[b, h])
            seen = torch.stack(states[1:] if own else states[:-1])
            rows.append((torch.einsum("rtf,tfe->rte", q[b, h], seen), states[-1]))
    answers, last = (torch.stack(each) for each in zip(*rows))
    return answers.view(*q.shape[:4], -1), last.view(start.shape)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_pieces_equal_the_token_loop(tokens, kind, own):
    k, v, q, start, decay = given = inputs(tokens, kind, width=WIDTHS[kind])
    found = stream.run(start, k, v, decay, SIZE, own)
    ours, theirs = (found.read(q), found.last), looped(k, v, q, start, decay, own)
    for a, b in zip(ours, theirs):
        assert_near(a, b, 1e-12)
    leaves = [x for x in given if x is not None]
    weights = [normal(*x.shape, seed=7 + i) for i, x in enumerate(ours)]
    grads = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(out, weights)), leaves, retain_graph=True)
        for out in (ours, theirs)
    ]
    for a, b in zip(*grads):
        assert_near(a, b, 1e-11)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_the_length_of_a_piece_changes_no_answer(size):
    k, v, q, start, decay = inputs(29, "channel")
    a, b = (stream.run(start, k, v, decay, n, True) for n in (size, 7))
    assert_near(a.read(q), b.read(q), 1e-12)
    assert_near(a.last, b.last, 1e-12)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_decay_along_the_values_is_the_same_on_the_transposed_state(tokens, own):
    """k v^T with a decay of the columns, against the transposed rule: v k^T with one of the rows."""
    k, v, q, start, _ = inputs(tokens, "none")
    decay = F.logsigmoid(normal(2, 2, tokens, 5, seed=6))
    found = stream.run(start, k, v, decay, SIZE, own, axis="values")
    turned = stream.run(start.transpose(-1, -2), v, k, decay, 3, own)
    assert_near(found.last, turned.last.transpose(-1, -2), 1e-12)
    rows = []
    for b in range(2):
        for h in range(2):
            states = reference.decayed_states(start[b, h].T, v[b, h], k[b, h], torch.exp(decay[b, h]))
            seen = torch.stack(states[1:] if own else states[:-1]).transpose(-1, -2)
            rows.append(torch.einsum("rtf,tfe->rte", q[b, h], seen))
    assert_near(found.read(q), torch.stack(rows).view(2, 2, 2, tokens, 5), 1e-12)


@pytest.mark.parametrize("gate", [0.3, 0.9, 0.999])
def test_no_decay_overflows_over_4096_tokens(gate):
    """fp32, 64 tokens a piece: exp(-G) alone would be 1e33 at a gate of 0.3, and infinite at 0.2."""
    k, v, q = (normal(1, 1, 4096, n, seed=n, dtype=torch.float32) for n in (4, 3, 5))
    q = q[..., :4].unsqueeze(2)
    decay = torch.full((1, 1, 4096, 1), gate).log()
    found = stream.run(torch.zeros(1, 1, 4, 3), k, v, decay, 64, True)
    ours = found.read(q)[0, 0, 0]
    state, theirs = torch.zeros(4, 3, dtype=torch.float64), []
    for t in range(4096):
        state = gate * state + torch.outer(k[0, 0, t].double(), v[0, 0, t].double())
        theirs.append(q[0, 0, 0, t].double() @ state)
    theirs = torch.stack(theirs).float()
    assert float((ours - theirs).abs().max()) <= 1e-4 * float(theirs.abs().max())
    harsh = stream.run(torch.zeros(1, 1, 4, 3), k, v, torch.full((1, 1, 4096, 1), -1e4), 64, True)
    assert bool(torch.isfinite(harsh.read(q)).all()) and bool(torch.isfinite(harsh.last).all())


def test_detach_cuts_between_pieces():
    k, v, q, start, decay = inputs(12, "channel")
    for detach, reached in ((0, {0, 1, 2}), (1, {2}), (2, {2})):
        found = stream.run(start, k, v, decay, SIZE, True, detach=detach)
        grad = torch.autograd.grad(found.read(q)[:, :, :, -1].sum(), v)[0]
        assert {i for i in range(3) if bool(grad[:, :, 4 * i : 4 * i + 4].any())} == reached


RULES = {
    "gla": ("gla", {}), "hgrn2": ("gla", {"variant": "hgrn2"}), "scalar": ("gla", {"variant": "scalar"}),
    "gsa": ("gsa", {"slots": 3}), "hedgehog": ("hedgehog", {"width": 4}),
    "gated": ("hedgehog", {"width": 4, "gate": "scalar", "features": "exp"}),
}  # fmt: skip


def memory_of(name, heads=2, dim=6, hidden=5):
    rule, options = RULES[name]
    spec = slot(rule=rule, options=options, lag="self", rope="none", mix="add")
    made = Memory.rules[rule](spec.rule_options, heads, dim, hidden).double()
    for parameter in made.parameters():
        parameter.data += 0.3 * normal(*parameter.shape)
    return made


@pytest.mark.parametrize("name", RULES)
def test_a_masked_token_leaves_the_state_as_it_is_to_the_bit(name):
    """Decay and write both: other rows are written as ever."""
    memory, tokens = memory_of(name), 9
    raw, v, x = normal(2, 2, tokens, 6), normal(2, 2, tokens, 6, seed=1), normal(2, tokens, 5, seed=2)
    k = torch.cat([raw, -raw, raw], -1)[..., :8].softmax(-1) if "hedgehog" in RULES[name][0] else raw.softmax(-1)
    extra = memory.tokens(x) | {"raw": raw}
    like = torch.zeros(2, dtype=torch.float64)
    full, _ = memory.stream(memory.start(2, like), k, v, extra, None, Timing(True, 4))
    masked = torch.ones(2, tokens, dtype=torch.bool)
    masked[0] = False
    after, _ = memory.stream(full, k, v, extra, masked, Timing(True, 4))
    for key, value in after.items():
        assert torch.equal(value[0], full[key][0]) and not torch.equal(value[1], full[key][1])
