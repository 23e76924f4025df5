"""Measuring: sane figures for known work, exact cache bytes, interleaving, memory of a known allocation."""

import json
import subprocess

import pytest
import torch

from anchorlm.bench import measure, memory, peak_memory
from anchorlm.bench.worker import ModelSpec, measure_peak
from anchorlm.convert.attach import convert
from anchorlm.core import UserError
from small import char_tokenizer, tiny_llama


def test_rows_for_every_model_and_length_with_exact_teacher_bytes():
    seen = []
    result = measure(
        {"a": tiny_llama(), "b": tiny_llama(seed=1)}, [16, 64], 5, rounds=2, progress=lambda *x: seen.append(x)
    )
    assert [(row["length"], row["model"]) for row in result["rows"]] == [(16, "a"), (16, "b"), (64, "a"), (64, "b")]
    for row in result["rows"]:
        assert row["state_bytes"] == 2 * 2 * 2 * 8 * 4 * row["length"]  # layers, K and V, KV heads, head dim, fp32
        assert row["decode_tokens"] == 10 and row["rounds"] == 2
        assert 0 < row["decode_spread"][0] <= row["decode_ms"] <= row["decode_spread"][1]
        low, high = row["prefill_spread"]
        assert low <= row["prefill_tokens_per_s"] <= high
        assert row["dtype"] == "float32" and row["kernel"]
    assert result["options"]["warm_up"] and result["environment"]["threads"]
    assert seen[-1] == ("bench 64 tokens", 2, 2)
    json.dumps(result)


def test_the_fullest_state_holds_at_every_length_and_is_reached():
    slot = {"write": 0, "read": [0, 1], "chunk": 16}
    model = convert(tiny_llama(), {"attention": {"kind": "window", "window": 16, "sinks": 2}, "slots": {"m": slot}})
    rows = measure({"m": model.eval()}, range(30, 50), 1, rounds=1)["rows"]
    assert len({row["state_bytes_most"] for row in rows}) == 1
    assert max(row["state_bytes"] for row in rows) == rows[0]["state_bytes_most"]


def test_decoding_alternates_between_models(monkeypatch):
    order = []
    models = {name: tiny_llama() for name in "ab"}
    for name, model in models.items():
        model.register_forward_pre_hook(lambda *_, name=name: order.append(name))
    measure(models, [4], 3, rounds=1)
    assert "".join(order[-6:]) == "ababab"


def test_beyond_the_positions_is_noted():
    row = measure({"a": tiny_llama(max_positions=8)}, [16], 2, rounds=1)["rows"][0]
    assert row["note"] == "beyond the 8 positions of the base model"


@pytest.mark.parametrize("sampled", [False, True])
def test_peak_memory_sees_a_freed_allocation(monkeypatch, sampled):
    if sampled:
        monkeypatch.setattr(memory, "_reset_high_water", lambda: False)
    with peak_memory() as peak:
        block = torch.ones(64 * 2**18)  # 64 MiB
        float(block.sum())
        del block
    assert 60 * 2**20 < peak.growth < 100 * 2**20
    assert peak.method == ("sampled" if sampled else peak.method)


def test_bad_input():
    with pytest.raises(UserError, match="bench length is 0"):
        measure({"a": tiny_llama()}, [0])
    with pytest.raises(UserError, match="no length"):
        measure({"a": tiny_llama()}, [])


def test_peak_in_a_process_of_its_own(tmp_path):
    tiny_llama(max_positions=4096).save_pretrained(tmp_path / "base")
    char_tokenizer().save_pretrained(tmp_path / "base")
    found = measure_peak(ModelSpec(str(tmp_path / "base")), 256)
    assert found["length"] == 256 and found["growth"] > 0


def test_a_failing_process_gives_its_last_line(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\n  ...\nUserError: base x does not exist\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(UserError, match="memory of x at 16 tokens could not be measured: UserError: base x does not"):
        measure_peak(ModelSpec("x"), 16)
