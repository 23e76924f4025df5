"""Calibration: keys are centred, the branch stays silent, a trained memory is left alone."""

import pytest
import torch

from anchorlm.bench.retention import CHUNKS, retention
from anchorlm.convert.attach import convert
from anchorlm.convert.calibrate import TARGET, calibrate, untouched
from anchorlm.core import UserError
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from builders import teacher

CHUNK = 16


@pytest.fixture
def model():
    base = teacher("qwen2", dtype=torch.float32)  # has key biases: a part that all keys share
    for layer in base.model.layers:
        layer.self_attn.k_proj.bias.data.fill_(3.0)
    return convert(base, build("anchor", ModelShape.from_config(base.config), window=CHUNK)).eval()


@pytest.fixture
def ids(model):
    return torch.randint(0, model.shape.vocab, (1, CHUNKS * CHUNK), generator=torch.Generator().manual_seed(0))


def test_the_rows_say_what_calibration_changes(model, ids):
    rows = retention(model, ids)["rows"]
    before, after = ({r["slot"]: r for r in rows if r["start"] == s} for s in ("as converted", "calibrated"))
    assert set(before) == set(after) == set(model.plan.slots)
    for name, row in after.items():
        assert row["common part of keys"] < 0.5 * before[name]["common part of keys"]
        assert TARGET / 3 < row["change a chunk"] < TARGET * 3


@torch.no_grad()
def test_calibration_leaves_every_logit_as_it_was(model, ids):
    expected = model(ids).logits
    parameters = {name: p.clone() for name, p in model.memory_parameters().items()}
    calibrate(model, ids)
    assert torch.equal(model(ids).logits, expected)
    changed = {name for name, p in model.memory_parameters().items() if not torch.equal(p, parameters[name])}
    assert changed and all(any(part in n for part in ("keys", "queries", "value_scale", "steps")) for n in changed)


def test_an_opened_gate_means_trained(model):
    assert untouched(model)
    next(p for n, p in model.memory_parameters().items() if n.endswith("gate_weight")).data[0, 0] = 1e-3
    assert not untouched(model)


def test_a_short_text_is_refused_with_what_is_needed(model, ids):
    with pytest.raises(UserError, match=f"{2 * CHUNK} tokens"):
        calibrate(model, ids[:, : 2 * CHUNK - 1])
    with pytest.raises(UserError, match=f"{CHUNKS * CHUNK} tokens"):
        retention(model, ids[:, :-1])
