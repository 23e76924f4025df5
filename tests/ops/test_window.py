"""Banded attention against the token loop: values and gradients, all reaches, lengths around every block edge."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from anchorlm.ops import reference, window
from anchorlm.ops.rows import Span
from anchorlm.plan import Reach
from builders import assert_near, normal

FREQUENCIES = 1.0 / 10 ** (torch.arange(3, dtype=torch.float64) / 2)
REACHES = {
    "full": Reach(),
    "window": Reach("window", 7),
    "window of one": Reach("window", 1),
    "sinks": Reach("window", 7, 3),
    "more sinks than window": Reach("window", 2, 5),
    "segment": Reach("segment", segment=7),
}


def turn(x, position):
    return reference.rotate(x, position, FREQUENCIES)


def angles(positions):
    table = positions[..., None].double() * torch.cat([FREQUENCIES, FREQUENCIES])
    return table.cos(), table.sin()


def attend(q, k, v, reach, span):
    """All tokens at once. q: [B, Hq, T, d], k, v: [B, Hkv, T, d] before RoPE; every row starts at 0."""
    positions = span.positions(q.device)
    rotated = window.rotate(k, *angles(positions))
    sinks = None
    if reach.sinks:
        place = angles(window.sink_position(positions, reach))
        sinks = window.Sinks(rotated[:, :, : reach.sinks], v[:, :, : reach.sinks], window.rotate(q, *place))
    return window.attend(window.rotate(q, *angles(positions)), rotated, v, reach, span, 0.4, sinks)


def by_loop(q, k, v, reach):
    groups = q.shape[1] // k.shape[1]
    rows = [
        torch.stack(
            [
                reference.attention(q[b, h], k[b, h // groups], v[b, h // groups], reach, 0.4, turn)
                for h in range(q.shape[1])
            ]
        )
        for b in range(q.shape[0])
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("length", [1, 6, 7, 8, 23])
@pytest.mark.parametrize("name", REACHES)
def test_values_and_gradients_equal_the_token_loop(name, length):
    q, k, v = (normal(2, heads, length, 6, seed=s).requires_grad_() for heads, s in ((4, 1), (2, 2), (2, 3)))
    span = Span((0, 0), (length, length), length)
    fast, slow = attend(q, k, v, REACHES[name], span), by_loop(q, k, v, REACHES[name])
    assert_near(fast, slow, 1e-12)
    weight = normal(*fast.shape)
    pairs = zip(
        torch.autograd.grad((fast * weight).sum(), (q, k, v)), torch.autograd.grad((slow * weight).sum(), (q, k, v))
    )
    for ours, theirs in pairs:
        assert_near(ours, theirs, 1e-11)


@pytest.mark.parametrize("length", [63, 64, 65, 131])
@pytest.mark.parametrize(
    "reach", [Reach("window", 9, 2), Reach("window", 70, 2), Reach("segment", segment=50)], ids=str
)
def test_block_edges_inside_a_long_call(reach, length):
    q, k, v = (normal(1, 1, length, 6, seed=s) for s in (1, 2, 3))
    assert_near(attend(q, k, v, reach, Span((0,), (length,), length)), by_loop(q, k, v, reach), 1e-12)


@pytest.mark.parametrize("kind", ["full", "window", "segment"])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_visible_keys_by_a_one_hot_probe(kind, size):
    """Equal scores and one-hot values show each query's keys: a window counts the current token."""
    length = 19
    reach = {"full": Reach(), "window": Reach("window", size), "segment": Reach("segment", segment=size)}[kind]
    zeros = torch.zeros(1, 1, length, length, dtype=torch.float64)
    probe = torch.eye(length, dtype=torch.float64)[None, None]
    seen = window.attend(zeros, zeros, probe, reach, Span((0,), (length,), length), 1.0)[0, 0] > 0
    expected = [
        min(t + 1, size) if kind == "window" else t % size + 1 if kind == "segment" else t + 1 for t in range(length)
    ]
    assert seen.sum(1).tolist() == expected
    assert all(bool(seen[t, t - n + 1 : t + 1].all()) for t, n in enumerate(expected))


@pytest.mark.parametrize("reach", [Reach(), Reach("window", 8), Reach("segment", segment=8)], ids=str)
def test_one_definition_of_window_for_every_backend(reach):
    """The dense mask that transformers' eager and SDPA attention would be given means the same keys."""
    length = 30
    q, k, v = (normal(1, 2, length, 6, seed=s) for s in (1, 2, 3))
    places = torch.arange(length)[None]
    mask = window.visible(places, places, reach)
    span = Span((0,), (length,), length)
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], scale=0.4)
    eager = torch.softmax((q @ k.transpose(-1, -2) * 0.4).masked_fill(~mask[:, None], float("-inf")), -1) @ v
    assert_near(window.attend(q, k, v, reach, span, 0.4), dense, 1e-12)
    assert_near(window.attend(q, k, v, reach, span, 0.4), eager, 1e-12)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=lambda b: b.name)
@pytest.mark.parametrize("reach", [Reach(), Reach("window", 8), Reach("segment", segment=8)], ids=str)
def test_each_kernel_of_sdpa_under_the_same_mask_agrees(reach, backend):
    """Restricted to one kernel, torch raises where that kernel cannot take the mask: nothing falls back unseen."""
    length = 150
    q, k, v = (normal(2, 4, length, 8, seed=s, dtype=torch.float32).requires_grad_() for s in (1, 2, 3))
    places = torch.arange(length)[None]
    mask = window.visible(places, places, reach)[:, None]
    with sdpa_kernel(backend):
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.4)
    ours = window.attend(q, k, v, reach, Span((0, 0), (length, length), length), 0.4)
    assert_near(ours, theirs, 1e-5)
    weight = normal(*ours.shape, dtype=torch.float32)
    grads = [torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        assert_near(a, b, 1e-4)


def test_memory_grows_with_tokens_times_window_not_tokens_squared():
    """No tensor made on the way, forward or backward, is near tokens squared."""
    length, size = 2048, 32
    largest = [0]

    def note(tensor):
        largest[0] = max(largest[0], tensor.numel())
        return tensor

    q, k, v = (torch.randn(1, 1, length, 4).requires_grad_() for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        window.attend(q, k, v, Reach("window", size), Span((0,), (length,), length), 1.0).sum().backward()
    assert 0 < largest[0] <= 4 * length * size


def test_bf16_sums_in_fp32():
    q, k, v = (normal(1, 2, 40, 8, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    exact = window.attend(q, k, v, Reach("window", 16), Span((0,), (40,), 40), 0.3)
    half = window.attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), Reach("window", 16), Span((0,), (40,), 40), 0.3)
    assert half.dtype == torch.bfloat16
    assert_near(half.float(), exact, 3e-2)


def test_a_compiled_graph_gives_the_same_bands():
    """Captured by the compiler and run as captured; code generation is left out, so no C++ compiler is needed."""
    reach, span = Reach("window", 7, 2), Span((0,), (40,), 40)
    q, k, v, far = (torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(4))
    sinks = window.Sinks(k[:, :, :2], v[:, :, :2], far)

    def run(q, k, v, far):
        return window.attend(q, k, v, reach, span, 0.3, window.Sinks(k[:, :, :2], v[:, :, :2], far))

    expected = window.attend(q, k, v, reach, span, 0.3, sinks)
    torch.testing.assert_close(torch.compile(run, backend="eager")(q, k, v, far), expected, rtol=0, atol=1e-12)
