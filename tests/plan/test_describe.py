"""A plan's bytes from shapes alone: the published figures, and every part on a line of its own."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlm.describe import describe, describe_slots, layers_text, state_bytes
from anchorlm.plan import ModelShape, Plan, layer_range
from anchorlm.presets import build

LLAMA = ModelShape(32, 32, 8, 128, 4096, 128256, 131072)
FAST = {
    "anchor-f": 201_326_592,
    "anchor-i": 176_160_768,
    "anchor": 12_582_912,
    "anchor-private": 37_748_736,
    "anchor-hybrid": 50_331_648,
    "swa": 0,
    "full": 0,
}


@pytest.mark.parametrize("name", FAST)
def test_fast_weights_of_llama_8b(name):
    assert state_bytes(build(name, LLAMA), LLAMA)["fast weights"] == FAST[name]


def test_every_part_of_llama_8b_under_anchor():
    parts = state_bytes(build("anchor", LLAMA, options={"momentum": True}), LLAMA)
    token = 2 * 8 * 128 * 2
    assert parts == {
        "fast weights": 12_582_912,
        "momentum": 12_582_912,
        "kept tokens": 0,
        "chunk buffer": 2 * 511 * (token + (3 * 32 + 32) * 4),
        "window ring": 32 * 511 * token,
        "sinks": 524_288,
        "counters": 8,
        "full attention per token": 0,
    }


def test_kv_heads_take_a_quarter_and_the_hybrid_adds_full_attention():
    kv = state_bytes(build("anchor", LLAMA, heads="kv"), LLAMA)
    assert kv["fast weights"] == 12_582_912 // 4
    assert state_bytes(build("anchor-hybrid", LLAMA), LLAMA)["full attention per token"] == 8 * 4096
    assert state_bytes(build("full", LLAMA), LLAMA)["full attention per token"] == 131_072


def test_bytes_follow_element_size_lag_and_conv():
    base = state_bytes(build("anchor", LLAMA, chunk=256), LLAMA)
    wide = state_bytes(build("anchor", LLAMA, chunk=256), ModelShape(32, 32, 8, 128, 4096, 1, 1, bytes_per_element=4))
    assert wide["window ring"] == 2 * base["window ring"] and wide["fast weights"] == base["fast weights"]
    lagged = state_bytes(build("anchor", LLAMA, chunk=256, lag=1), LLAMA)
    assert lagged["chunk buffer"] == 511 * base["chunk buffer"] // 255
    conv = state_bytes(build("anchor", LLAMA, chunk=256, conv=4), LLAMA)
    assert conv["chunk buffer"] == base["chunk buffer"] + 2 * 3 * 4096


def test_a_group_of_chunks_carries_the_weights_it_began_with():
    grouped = state_bytes(build("anchor", LLAMA, options={"group": 4}), LLAMA)
    assert grouped["fast weights"] == 2 * FAST["anchor"] + 2 * 32 * 4


def test_rows_of_a_plan():
    rows = describe(build("anchor", LLAMA), LLAMA)
    assert [r["layers"] for r in rows] == ["0", "1", "2-27", "28", "29-31"]
    assert [r["writes"] for r in rows] == ["head", "", "", "tail", ""]
    assert [r["reads"] for r in rows] == ["head", "head", "", "tail", "tail"]
    assert {r["attention"] for r in rows} == {"window 512 + 4 sinks"}
    slots = describe_slots(build("anchor", LLAMA), LLAMA)
    assert [s["bytes"] for s in slots] == [6_291_456, 6_291_456]
    assert [s["readers"] for s in slots] == ["0, 1", "28, 29, 30, 31"]


def test_bytes_and_words_of_single_heads():
    """Head by head: full attention grows, a window keeps its ring and sinks, `none` keeps nothing."""
    heads = {0: "full", 3: "full", 5: "none", 6: {"kind": "window", "window": 64}}
    plan = Plan.from_dict(
        {"attention": {"kind": "window", "window": 512, "sinks": 4}, "layers": {3: {"heads": heads}}}, 32
    )
    head, parts = 2 * 128 * 2, state_bytes(plan.check(LLAMA), LLAMA)
    assert parts["full attention per token"] == 2 * head
    assert parts["window ring"] == 31 * 8 * 511 * head + 4 * 511 * head + 63 * head
    assert parts["sinks"] == 31 * 8 * 4 * head + 4 * 4 * head
    row = describe(plan, LLAMA)[1]
    assert row["layers"] == "3"
    assert row["attention"] == "window 512 + 4 sinks; heads 0, 3 full; head 5 none; head 6 window 64"


def test_all_heads_named_count_as_the_layer_that_they_are():
    named = Plan.from_dict({"attention": {"kind": "window", "window": 9, "heads": {"0-7": "full"}}}, 32)
    assert state_bytes(named, LLAMA) == state_bytes(build("full", LLAMA), LLAMA)


@given(st.sets(st.integers(0, 40)))
def test_layers_in_words_are_read_back(layers):
    text = layers_text(layers)
    parts = [] if text == "-" else text.split(", ")
    assert [layer for part in parts for layer in layer_range(part, 41, "layers")] == sorted(layers)
    assert all(int(after.split("-")[0]) > int(before.split("-")[-1]) + 1 for before, after in pairwise(parts))
