"""Writing and reading a slot against the token loop, for every rule and option: values, states and gradients."""

import pytest
import torch

import slow
from anchorlm.memory import SlotWriter
from anchorlm.nn.reader import SlotReader
from anchorlm.ops.partials import Partial
from anchorlm.ops.rows import Span
from anchorlm.plan import ModelShape
from anchorlm.state import SlotState
from builders import SLOT_KINDS, assert_near, normal, shake, slot

SHAPE = ModelShape(layers=64, query_heads=4, kv_heads=2, head_dim=6, hidden=8, vocab=10, max_positions=99)
# Muon's loop goes through singular values, whose gradient needs as many tokens as the head is wide.
KINDS = {
    kind: slot(kind, **({"chunk": 8} if kind == "muon" else {}))
    for kind in SLOT_KINDS
    if slot(kind).rule in ("swiglu-ttt", "nmm", "linear", "delta")
}
KINDS["lag-conv-kv"] = slot("conv", lag=2, heads="kv", chunk=3)
KINDS["width-one-conv"] = slot("conv", conv=1)


def pair(spec, seed=7):
    writer, reader = SlotWriter(spec, SHAPE).double(), SlotReader(spec, SHAPE).double()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in writer.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    shake(dict(writer.named_parameters()), seed, matrix=0.2, vector=0.3)
    shake(dict(reader.named_parameters()), seed + 1, matrix=0.2, vector=0.3)
    return writer, reader


def inputs(tokens, rows=2):
    sizes = [(rows, tokens, 8), (rows, tokens, 2, 6), (rows, tokens, 2, 6), (rows, 4, tokens, 6), (rows, 4, tokens, 6)]
    return [normal(*size, seed=s) for s, size in enumerate(sizes)]


def fast(writer, reader, x, k, v, q, attended, span, state=None, **options):
    trace, state = writer(x, k, v, state or SlotState(), span, slow.rotary, **options)
    return reader(Partial(attended), x, q, trace, span.positions("cpu"), slow.rotary).answer, state


def lengths(spec):
    return sorted({1, spec.chunk - 1, spec.chunk, spec.chunk + 1, 3 * spec.chunk + 1})


CASES = [(kind, tokens) for kind, spec in KINDS.items() for tokens in lengths(spec) if tokens]


@pytest.mark.parametrize("kind,tokens", CASES)
def test_values_states_and_gradients_equal_the_token_loop(kind, tokens):
    writer, reader = pair(KINDS[kind])
    given = [t.requires_grad_() for t in inputs(tokens)]
    span = Span((0, 0), (tokens, tokens), tokens)
    ours, state = fast(writer, reader, *given, span)
    x, k, v, q, attended = given
    rows = [slow.SlowRow(writer, x[b], k[b], v[b]) for b in range(2)]
    theirs = torch.stack([slow.read(reader, row, q[b], attended[b]) for b, row in enumerate(rows)])
    assert_near(ours, theirs, 1e-10)
    _same_weights(state, rows, max(0, tokens // KINDS[kind].chunk - KINDS[kind].behind))
    if not ours.requires_grad:  # mix "residual" before anything is written
        return
    leaves = given + [*writer.parameters(), *reader.parameters()]
    weight = normal(*ours.shape, seed=11)
    grads = [torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True) for out in (ours, theirs)]
    for leaf, a, b in zip(leaves, *grads, strict=True):
        zero = torch.zeros_like(leaf)
        assert_near(zero if a is None else a, zero if b is None else b, 1e-8)


def _same_weights(state, rows, written):
    if not written:
        assert state.weights is None
        return
    for b, row in enumerate(rows):
        for head in range(row.writer.heads):
            expected = row.state_after(head, written)
            expected = expected if isinstance(expected, dict) else {"s": expected}
            assert expected.keys() == state.weights.keys()
            for name, value in expected.items():
                assert_near(state.weights[name][b, head], value, 1e-10, name)


@pytest.mark.parametrize("kind", KINDS)
def test_any_split_equals_one_call(kind):
    writer, reader = pair(KINDS[kind])
    x, k, v, q, attended = inputs(29)
    whole, end = fast(writer, reader, x, k, v, q, attended, Span((0, 0), (29, 29), 29))
    state, parts, start = SlotState(), [], 0
    for width in (1, 2, 8, 1, 13, 4):
        cut = slice(start, start + width)
        piece = [x[:, cut], k[:, cut], v[:, cut], q[:, :, cut], attended[:, :, cut]]
        part, state = fast(writer, reader, *piece, Span((start, start), (width, width), width), state)
        parts.append(part)
        start += width
    assert_near(torch.cat(parts, 2), whole, 1e-12)
    for name, value in (end.weights or {}).items():
        assert_near(state.weights[name], value, 1e-12)
    for name, value in end.buffer.items():
        assert_near(state.buffer[name], value, 1e-12)
    assert (end.tail is None) == (state.tail is None)


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_chunks_give_the_same_gradients(kind):
    writer, reader = pair(KINDS[kind])
    leaves = [*writer.parameters(), *reader.parameters()]
    results = []
    for recompute in (False, True):
        out, _ = fast(writer, reader, *inputs(25), Span((0, 0), (25, 25), 25), recompute=recompute)
        results.append(torch.autograd.grad(out.square().sum(), leaves, allow_unused=True))
    for a, b in zip(*results, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("kind", ["default", "muon", "dot-pre", "delta", "conv", "nmm-group"])
def test_gradcheck_through_three_chunks(kind):
    spec = slot(kind, chunk=2, heads="kv", **({"conv": 2} if kind == "conv" else {}))
    small = ModelShape(layers=64, query_heads=2, kv_heads=1, head_dim=2, hidden=2, vocab=10, max_positions=99)
    writer, reader = SlotWriter(spec, small).double(), SlotReader(spec, small).double()
    shake(dict(writer.named_parameters()), 1, matrix=0.4, vector=0.3)
    shake(dict(reader.named_parameters()), 2, matrix=0.4, vector=0.3)
    leaves = {f"w.{n}": p for n, p in writer.named_parameters()} | {f"r.{n}": p for n, p in reader.named_parameters()}
    sizes = [(1, 7, 2), (1, 7, 1, 2), (1, 7, 1, 2), (1, 2, 7, 2), (1, 2, 7, 2)]  # three chunks and a token
    given = [normal(*size, seed=s).requires_grad_() for s, size in enumerate(sizes)]

    def run(*values):
        return fast(writer, reader, *values[:5], Span((0,), (7,), 7))[0]

    assert torch.autograd.gradcheck(lambda *values: run(*values), (*given, *leaves.values()), atol=1e-6, fast_mode=True)


def test_truncation_stops_gradients_at_chunk_boundaries():
    """detach = n: a write reaches back through at most n chunks; values do not change."""
    for detach, reached in ((0, {0, 1, 2, 3}), (1, {3}), (2, {2, 3}), (3, {3}), (9, {0, 1, 2, 3})):
        writer, reader = pair(slot())
        given = inputs(17)
        given[2] = given[2].requires_grad_()
        out, _ = fast(writer, reader, *given, Span((0, 0), (17, 17), 17), detach=detach)
        plain, _ = fast(*pair(slot()), *given, Span((0, 0), (17, 17), 17))
        assert torch.equal(out, plain)
        grad = torch.autograd.grad(out[:, :, 16].sum(), given[2])[0]
        assert {c for c in range(4) if bool(grad[:, 4 * c : 4 * c + 4].any())} == reached


def test_a_call_leaves_slow_weights_and_the_given_state_alone():
    writer, reader = pair(KINDS["muon"])
    before = {n: p.clone() for n, p in writer.named_parameters()}
    _, first = fast(writer, reader, *inputs(9), Span((0, 0), (9, 9), 9))
    kept = first.map(torch.Tensor.clone)
    fast(writer, reader, *inputs(9), Span((9, 9), (9, 9), 9), first)
    assert all(torch.equal(p, before[n]) for n, p in writer.named_parameters())
    assert all(torch.equal(first.weights[n], kept.weights[n]) for n in kept.weights)
    assert all(torch.equal(first.buffer[n], kept.buffer[n]) for n in kept.buffer)
