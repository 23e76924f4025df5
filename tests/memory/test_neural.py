"""The neural memory on its own: its start, what it learns, what it forgets, and its calibrated step."""

from itertools import pairwise

import pytest
import torch

from anchorlm.convert.calibrate import TARGET, calibrate
from anchorlm.memory import NeuralMemory
from anchorlm.rules import NeuralOptions
from builders import assert_near, hybrid, normal, tokens
from probes import read_by


def memory(**options):
    torch.manual_seed(0)
    return NeuralMemory(NeuralOptions(**options), 2, 6, 5).double()


def written(rule, state, seed=1, tokens=8):
    k, v = (normal(1, 2, tokens, 6, seed=s) for s in (seed, seed + 1))
    return rule.write(state, k, v, rule.tokens(normal(1, tokens, 5, seed=seed + 2)))


def test_it_has_three_layers_of_width_64_and_rows_of_unit_gain():
    torch.manual_seed(0)
    rule = NeuralMemory(NeuralOptions(), 8, 64, 32)
    assert [tuple(getattr(rule, name).shape) for name in rule.names] == [(8, 64, 64)] * 3
    assert [tuple(x.shape[1:]) for x in (memory().w0, memory().w1, memory().w2)] == [(64, 6), (64, 64), (6, 64)]
    assert rule.w1.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert sum(p.numel() for n, p in rule.named_parameters() if n[0] == "w") == 8 * NeuralOptions().weights(64)


@torch.no_grad()
def test_a_chunk_written_often_is_answered_better_each_time():
    rule = memory(momentum=False, decay=False, step=0.004)
    k, v = normal(1, 2, 8, 6, seed=1), normal(1, 2, 8, 6, seed=2)
    state, errors = rule.start(1), []
    for _ in range(60):
        errors.append(float((rule.read(rule.readable(state), k).answer - v).square().mean()))
        state = rule.write(state, k, v, rule.tokens(torch.zeros(1, 8, 5).double()))
    assert all(b < a for a, b in pairwise(errors)) and errors[-1] < 0.5 * errors[0]


def test_a_zero_step_forgets_at_the_stated_rate_and_moves_nothing():
    rule = memory()
    rule.steps.bias.data.fill_(-1e4)
    state = start = rule.start(1)
    for n in range(3):
        state = written(rule, state, seed=n)
    rate = 1 - torch.sigmoid(torch.tensor(-6.0, dtype=torch.float64))
    for name in rule.names:
        assert_near(state[name], rate**3 * start[name], 1e-12)
        assert not state[f"momentum.{name}"].any()


def test_a_poisoned_chunk_cannot_blow_it_up():
    rule = memory(decay=False, momentum=False)
    start = rule.start(1)
    after = rule.write(start, 50 * normal(1, 2, 8, 6), 1e6 * normal(1, 2, 8, 6, seed=2), rule.tokens(normal(1, 8, 5)))
    for name in rule.names:
        moved = (after[name] - start[name]).norm(dim=(-2, -1))
        assert bool((moved <= 0.5 * start[name].norm(dim=(-2, -1)) + 1e-9).all())


@torch.no_grad()
def test_calibration_sets_the_step_and_leaves_values_at_the_size_of_attention():
    model = hybrid("llama", "titan-llama", layers=2, dtype=torch.float32, shaken=False, segment=8, options={"width": 6})
    ids = tokens(2, 64)
    found = calibrate(model, ids)
    assert sorted(found) == ["l0", "l1"] and all(step != 0.002 for step in found.values())
    for name, layer in zip(("l0", "l1"), model.backbone.model.layers, strict=True):
        assert bool((layer.self_attn.writers[name].value_scale == 1).all())
        _, cache = read_by(model, ids, [8])
        memory, held = layer.self_attn.writers[name].memory, cache.state.slots[name].weights
        change = max(
            float((held[n] - memory.first(n)).norm() / memory.first(n).expand_as(held[n]).norm()) for n in memory.names
        )
        assert TARGET / 4 < change < 4 * TARGET
