"""What each rule promises on its own: starts, zero steps, norms, retention, precision."""

import math

import pytest
import torch
from torch.nn import functional as F

from anchorlm.memory import Memory
from anchorlm.memory.base import StepSize, inverse_softplus
from anchorlm.memory.features import Features
from anchorlm.plan import Slot
from builders import assert_near, normal, slot

DIM = 6


def memory(rule="swiglu-ttt", heads=2, dim=DIM, hidden=5, dtype=torch.float64, **options):
    spec = slot(rule=rule, options=options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Memory.rules[rule](spec.rule_options, heads, dim, hidden).to(dtype)
    made.options = spec.rule_options
    return made


def chunk(tokens, heads=2, dim=DIM, seed=1, dtype=torch.float64):
    k = math.sqrt(dim) * F.normalize(normal(1, heads, tokens, dim, seed=seed, dtype=dtype), dim=-1)
    return k, normal(1, heads, tokens, dim, seed=seed + 1, dtype=dtype)


def written(rule, state, tokens, seed=1, hidden=5, **given):
    k, v = chunk(tokens, rule.heads, k_dim(rule), seed, **given)
    x = normal(1, tokens, hidden, seed=seed + 2, **given)
    return rule.write(state, k, v, rule.tokens(x))


def k_dim(rule):
    return rule.w0.shape[-1] if hasattr(rule, "w0") else rule.dim


@pytest.mark.parametrize("step", [1e-4, 0.002, 0.05, 1.0, 40.0])
def test_step_sizes_start_at_the_option(step):
    sizes = StepSize(5, 3, step)(normal(2, 4, 5, dtype=torch.float32))
    assert sizes.dtype == torch.float32
    assert_near(sizes, torch.full_like(sizes, step), 1e-5 * step)
    assert math.log1p(math.exp(inverse_softplus(step))) == pytest.approx(step, rel=1e-9)


def test_slow_weights_start_with_variance_one_over_fan_in():
    rule = memory(heads=4, dim=64, ratio=2.0)
    for name, fan_in in (("w0", 64), ("w1", 128), ("w2", 64)):
        weight = getattr(rule, name)
        assert weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.02)
        assert abs(weight.mean().item()) < 3e-3
    assert rule.w0.shape == (4, 128, 64) and rule.w1.shape == (4, 64, 128)


@pytest.mark.parametrize(
    "options",
    [{}, {"row_norm": "post"}, {"row_norm": "pre"}, {"momentum": True, "muon": True}, {"loss": "dot"}],
    ids=str,
)
def test_a_zero_step_leaves_the_start_bit_identical(options):
    """Also with momentum, Muon and a row norm, however many chunks."""
    rule = memory(**options)
    rule.steps.bias.data.fill_(-1e4)
    start = state = rule.start(1)
    for n in range(5):
        state = written(rule, state, 8, seed=n)
    assert all(torch.equal(state[name], start[name]) for name in start)
    assert all(torch.equal(rule.readable(state)[name], rule.readable(start)[name]) for name in ("w0", "w1", "w2"))


def test_row_norms_hold_over_a_thousand_chunks():
    rule = memory(row_norm="post", step=0.2)
    state = rule.start(1)
    with torch.no_grad():
        for n in range(1000):
            state = written(rule, state, 4, seed=n)
    for name in ("w0", "w1", "w2"):
        norms = state[name][0].norm(dim=-1)
        assert not torch.allclose(state[name][0], getattr(rule, name), atol=0.1)
        assert_near(norms, getattr(rule, name).norm(dim=-1), 1e-9)


def test_what_the_carried_sum_reads_as_has_the_norms_of_the_start():
    rule = memory(row_norm="pre", step=0.2)
    state = rule.start(1)
    for n in range(20):
        state = written(rule, state, 4, seed=n)
    assert not torch.allclose(state["w0"][0].norm(dim=-1), rule.w0.norm(dim=-1), rtol=1e-3)
    for name, weight in rule.readable(state).items():
        assert_near(weight[0].norm(dim=-1), getattr(rule, name).norm(dim=-1), 1e-10)


def test_a_chunk_of_one_is_the_sequential_recurrence():
    rule = memory("delta")
    state, tokens = rule.start(1), 9
    k, v = chunk(tokens)
    k = k / math.sqrt(DIM)
    x = normal(1, tokens, 5)
    by_one = state
    for t in range(tokens):
        by_one = rule.write(by_one, k[:, :, t : t + 1], v[:, :, t : t + 1], rule.tokens(x[:, t : t + 1]))
    assert_near(rule.write(state, k, v, rule.tokens(x))["s"], by_one["s"], 1e-12)


def test_the_size_of_a_poisoned_update_is_bounded():
    """Huge values cannot blow the state up in one step: at most `limit` of the start per chunk."""
    rule = memory(limit=0.5)
    state = rule.start(1)
    k, v = chunk(8)
    after = rule.write(state, k, 1e6 * v, rule.tokens(normal(1, 8, 5)))
    for name in ("w0", "w1", "w2"):
        moved = (after[name] - state[name]).norm(dim=(-2, -1))
        assert bool((moved <= 0.5 * state[name].norm(dim=(-2, -1)) + 1e-12).all())


def test_rows_and_heads_do_not_meet():
    rule = memory(momentum=True, muon=True)
    k, v = (t.repeat(3, 1, 1, 1) + 0.1 * normal(3, 2, 8, DIM, seed=9) for t in chunk(8))
    x = normal(3, 8, 5)
    together = rule.write(rule.start(3), k, v, rule.tokens(x))
    for row in range(3):
        alone = rule.write(rule.start(1), k[row : row + 1], v[row : row + 1], rule.tokens(x[row : row + 1]))
        assert all(torch.equal(together[name][row], alone[name][0]) for name in alone)


def beaten(rule, size, dim=64, later=16):
    """Chunk 0 after `later` more chunks: the share of other values that are farther from an answer than its own."""
    heads, length = rule.heads, rule.options.key_length(dim)
    state, first = rule.start(1), None
    with torch.no_grad():
        for n in range(later + 1):
            k = length * F.normalize(normal(1, heads, size, dim, seed=100 * n, dtype=torch.float32), dim=-1)
            v = normal(1, heads, size, dim, seed=100 * n + 1, dtype=torch.float32)
            first = first or (k, v)
            state = rule.write(state, k, v, rule.tokens(torch.zeros(1, size, 5)))
        answers = F.normalize(rule.read(rule.readable(state), first[0]).answer, dim=-1)
    scores = answers @ F.normalize(first[1], dim=-1).transpose(-1, -2)
    others = (scores < scores.diagonal(dim1=-2, dim2=-1)[..., None]).float().sum(-1) / (size - 1)
    return others.mean().item()


@pytest.mark.parametrize("chunk, share", [(128, 0.7), (Slot.chunk, 0.65)])
def test_the_first_chunk_is_still_readable_after_sixteen_more(chunk, share):
    """Defaults, random keys and values: chance is 0.5."""
    assert beaten(memory(heads=2, dim=64, dtype=torch.float32), chunk) > share


@pytest.mark.parametrize("rule", ["linear", "delta"])
def test_matrix_memories_keep_what_fits_in_them(rule):
    assert beaten(memory(rule, heads=4, dim=64, dtype=torch.float32), 3) > 0.9


def test_the_published_default_forgets():
    """Orthogonalised full-size steps with renormalised rows wipe the first chunk out, so they are not our default."""
    harsh = {"muon": True, "muon_step": 1.0, "limit": 10.0, "row_norm": "post", "loss": "dot"}
    assert beaten(memory(heads=2, dim=64, dtype=torch.float32, **harsh), 512) < 0.55


def test_bf16_inputs_over_64_chunks_stay_near_the_fp32_state():
    rule = memory(heads=2, dim=16, dtype=torch.float32)
    exact = rough = rule.start(1)
    with torch.no_grad():
        for n in range(64):
            k, v = chunk(16, 2, 16, n, torch.float32)
            x = normal(1, 16, 5, seed=n, dtype=torch.float32)
            exact = rule.write(exact, k, v, rule.tokens(x))
            rough = rule.write(rough, k.bfloat16().float(), v.bfloat16().float(), rule.tokens(x.bfloat16()))
    assert all(value.dtype == torch.float32 for value in rough.values())
    for name in exact:
        drift = (rough[name] - exact[name]).norm() / (exact[name] - rule.start(1)[name]).norm()
        assert drift < 0.05, (name, float(drift))


def test_features_are_unit_length_times_the_key_length_and_safe_at_zero():
    features = Features(slot(options={"key_scale": 0.5}), 2, DIM).double()
    out = features(normal(1, 2, 4, DIM), torch.arange(4)[None], None)
    assert_near(out.norm(dim=-1), torch.full((1, 2, 4), 0.5 * math.sqrt(DIM), dtype=torch.float64), 1e-12)
    assert torch.equal(
        features(torch.zeros(1, 2, 4, DIM), torch.arange(4)[None], None), torch.zeros(1, 2, 4, DIM).double()
    )
