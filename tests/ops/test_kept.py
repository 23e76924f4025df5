"""Exact tokens: which stay, attention over them, the join, and what the teacher's far attention is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlm.ops import reference
from anchorlm.ops.kept import attend_kept, best, far_attention
from anchorlm.ops.partials import Partial, join
from builders import assert_near, normal


def stream(scores):
    order = torch.tensor(scores, dtype=torch.float64).view(1, 1, -1)
    return {"place": torch.arange(len(scores)).view(1, 1, -1, 1), "scores": order[..., None]}, order


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 6), st.data())
def test_the_best_of_a_stream_are_the_same_however_it_is_cut(scores, count, data):
    whole, order = stream(scores)
    expected = best(whole, order, count)["place"].flatten().tolist()
    held = {name: value[:, :, :0] for name, value in whole.items()}
    first = 0
    while first < len(scores):
        last = data.draw(st.integers(first + 1, len(scores)))
        joined = {name: torch.cat([held[name], whole[name][:, :, first:last]], 2) for name in whole}
        held, first = best(joined, joined["scores"][..., 0], count), last
    assert held["place"].flatten().tolist() == expected
    assert expected == reference.kept_tokens(lambda j, _: scores[j], len(scores), 1, count)


def test_the_join_of_two_parts_is_one_softmax():
    q, k, v = (normal(1, 2, n, 4, seed=s).requires_grad_() for s, n in enumerate((5, 9, 9)))
    everything = torch.ones(1, 2, 5, 9, dtype=torch.bool)
    whole = attend_kept(q, k, v, everything, None, 0.7)
    left, right = everything.clone(), everything.clone()
    left[..., 4:], right[..., :4] = False, False
    joined = join(attend_kept(q, k, v, left, None, 0.7), attend_kept(q, k, v, right, None, 0.7))
    assert_near(joined.answer, whole.answer, 1e-12)
    assert_near(joined.mass, whole.mass, 1e-12)
    theirs = torch.autograd.grad(whole.answer.square().sum(), (q, k, v))
    for ours, wanted in zip(torch.autograd.grad(joined.answer.square().sum(), (q, k, v)), theirs, strict=True):
        assert_near(ours, wanted, 1e-12)


def test_a_part_that_is_not_seen_changes_nothing_to_the_bit():
    q, k, v = (normal(1, 2, n, 4, seed=s).requires_grad_() for s, n in enumerate((5, 9, 9)))
    seen = torch.ones(1, 2, 5, 9, dtype=torch.bool)
    part = attend_kept(q, k, v, seen, None, 0.7)
    joined = join(part, attend_kept(q, k, v, ~seen, None, 0.7))
    assert torch.equal(joined.answer, part.answer)
    grads = torch.autograd.grad(joined.answer.sum(), (q, k, v))
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)


def test_groups_of_query_heads_share_a_state_head():
    q, k, v = normal(1, 4, 3, 6), normal(1, 2, 5, 6, seed=1), normal(1, 2, 5, 6, seed=2)
    bias = normal(1, 2, 5, 1, seed=3)
    seen = torch.rand(1, 2, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    ours = attend_kept(q, k, v, seen, bias, 0.5)
    for head in range(4):
        state = head // 2
        logits = (q[0, head] @ k[0, state].T * 0.5 + bias[0, state, :, 0]).masked_fill(~seen[0, state], -torch.inf)
        assert_near(ours.answer[0, head], torch.softmax(logits, -1) @ v[0, state], 1e-12)
        mass = (ours.mass.log() + ours.peak)[0, head, :, 0]
        assert_near(mass, torch.logsumexp(logits, -1), 1e-12)


def far_by_loop(q, k, scale, text, place, window):
    found = torch.zeros(k.shape[:3], dtype=q.dtype)
    groups = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                if text[b, t] < 0:
                    continue
                seen = [j for j in range(t + 1) if text[b, j] == text[b, t]]
                shares = torch.softmax(
                    torch.stack([(q[b, h, t] * k[b, h // groups, j]).sum() * scale for j in seen]), 0
                )
                for share, j in zip(shares, seen, strict=True):
                    if place[b, t] - place[b, j] >= window:
                        found[b, h // groups, j] = max(found[b, h // groups, j], share)
    return found


@pytest.mark.parametrize("window", [1, 3, 40])
def test_far_attention_is_the_largest_share_of_any_later_query(window, monkeypatch):
    monkeypatch.setattr("anchorlm.ops.kept.QUERIES", 4)
    q, k = normal(2, 4, 11, 6), normal(2, 2, 11, 6, seed=1)
    text = torch.tensor([[0] * 11, [0] * 4 + [1] * 5 + [-1] * 2])
    place = torch.tensor([list(range(11)), [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0]])
    ours = far_attention(q, k, 0.9, text, place, window)
    assert_near(ours, far_by_loop(q, k, 0.9, text, place, window), 1e-12)
    assert bool(ours.any()) == (window < 40)


def test_masses_survive_large_logits():
    ones = torch.ones(1, 1, 2, 1)
    part = Partial(normal(1, 1, 2, 3), ones, torch.tensor([1e4, -1e4]).view(1, 1, 2, 1))
    other = Partial(normal(1, 1, 2, 3, seed=2), ones, torch.tensor([-1e4, 1e4]).view(1, 1, 2, 1))
    joined = join(part, other)
    assert_near(joined.answer[0, 0, 0], part.answer[0, 0, 0], 1e-12)
    assert_near(joined.answer[0, 0, 1], other.answer[0, 0, 1], 1e-12)
