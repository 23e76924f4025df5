"""Choosers of kept tokens: against loops, streams that never look ahead, and the analysis from end to end."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from anchorlm.analyze import choosers, run_analysis
from anchorlm.analyze.choosers import CHOOSERS, Layer
from anchorlm.analyze.explain import keeping
from anchorlm.analyze.oracle import attend
from anchorlm.core import UserError
from anchorlm.hf import AnchorForCausalLM
from anchorlm.ops.window import rotate
from anchorlm.plan import Plan, Reach
from builders import assert_near, hybrid, shake_memory, tokens
from explained import text_store
from small import char_tokenizer, tiny_llama

WINDOW = Reach("window", 9, 2)
STREAMS = ("recent", "key norm", "attention received")
WINDOWS = (Reach("window", 1), Reach("window", 1, 2), WINDOW, Reach("window", 80, 4))
LENGTHS = (1, 9, 10, 11, 16, 97)


def layer_of(length: int, ids: torch.Tensor | None = None, window: Reach = WINDOW) -> Layer:
    model = hybrid("llama", "swa", layers=2)
    x = model.get_input_embeddings()(tokens(1, length) if ids is None else ids)
    decoder = model.backbone.model.layers[0]

    def rotary(places: torch.Tensor):
        return model.backbone.model.rotary_emb(x, places)

    return Layer(decoder.self_attn, decoder.input_layernorm(x), rotary, window, Reach())


def gone(length: int, window: Reach) -> torch.Tensor:
    """How many tokens but the sinks are beyond the window of each query."""
    return (torch.arange(length) + 1 - window.window - window.sinks).clamp(min=0)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", STREAMS)
@torch.inference_mode()
def test_every_query_finds_as_many_as_there_can_be_beyond_its_window(name, length, window):
    seen = CHOOSERS[name](layer_of(length, window=window), 5)
    assert torch.equal(seen.sum(-1), gone(length, window).clamp(max=5).expand(2, -1))
    place = torch.arange(length)
    assert not (seen & (place[:, None] - place[None] < window.window)).any() and not seen[..., : window.sinks].any()


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", STREAMS)
@torch.inference_mode()
def test_a_stream_does_not_look_ahead(name, window):
    ids, at = tokens(1, 160), 101
    other = ids.clone()
    other[:, at:] = (other[:, at:] + 3) % 40
    first, second = (CHOOSERS[name](layer_of(160, each, window), 5) for each in (ids, other))
    assert torch.equal(first[:, :at], second[:, :at])


@pytest.mark.parametrize("count", [1, 8, 150, 167])
@pytest.mark.parametrize("width", [1, 9, 100])
@torch.inference_mode()
def test_recent_tokens_are_a_window_wider_by_as_many(width, count):
    layer = layer_of(167, window=Reach("window", width))
    seen = choosers.recent(layer, count)
    wide = attend(layer.attention, layer.x, layer.rotary, seen, layer.window, layer.own)
    whole = Layer(layer.attention, layer.x, layer.rotary, Reach("window", width + count), Reach())
    none = torch.zeros(1, 1, 167, dtype=torch.bool)
    assert_near(wide, attend(whole.attention, whole.x, whole.rotary, none, whole.window, whole.own), 1e-9)


@torch.inference_mode()
def test_attention_received_against_a_loop_over_queries():
    length, count = 61, 4
    layer = layer_of(length)
    q, k, _ = layer.attention.project(layer.x)
    angles = layer.rotary(torch.arange(length)[None])
    q, k = rotate(q, *angles)[0], rotate(k, *angles)[0]
    found = choosers.received(layer, count)
    for head in range(2):
        total, dropped = [0.0] * length, set()
        for t in range(length):
            pool = [s for s in range(WINDOW.sinks, t + 1 - WINDOW.window) if s not in dropped]
            kept = set(sorted(pool, key=lambda s: (-total[s], s))[:count])
            dropped |= set(pool) - kept
            assert set(found[head, t].nonzero().flatten().tolist()) == kept
            sight = [s for s in range(t + 1) if s < WINDOW.sinks or t - s < WINDOW.window or s in kept]
            for query in (2 * head, 2 * head + 1):
                scores = {s: float(q[query, t] @ k[head, s]) * layer.attention.scale for s in sight}
                mass = sum(math.exp(score) for score in scores.values())
                for s, score in scores.items():
                    total[s] += math.exp(score) / mass


def kept_model(choose="gate"):
    """Layer 1 keeps exact tokens, chosen by a gate."""
    slot = {"rule": "kept", "write": 1, "chunk": 4, "options": {"tokens": 5, "choose": choose}}
    stored = {"attention": {"kind": "window", "window": 6, "sinks": 2}, "slots": {"k": slot}}
    return shake_memory(AnchorForCausalLM.from_backbone(tiny_llama(layers=4), Plan.from_dict(stored, 4))).eval()


def bare_model():
    return AnchorForCausalLM.from_backbone(tiny_llama(layers=4), Plan((Reach("window", 6, 2),) * 4)).eval()


@torch.inference_mode()
def test_a_fading_gate_keeps_what_age_has_left_most_of():
    layer = layer_of(61)
    scores = -torch.rand(2, 61, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = choosers.fading(replace(layer, gate=lambda x, k: scores), 4)
    for head in range(2):
        for t in range(61):
            pool = range(WINDOW.sinks, t + 1 - WINDOW.window)
            kept = sorted(pool, key=lambda s: (-float(scores[head, s]) * (t - s + 1), s))[:4]
            assert found[head, t].nonzero().flatten().tolist() == sorted(kept)


@pytest.mark.parametrize("choose, own, other", [("gate", "gate", "decaying gate"), ("decay", "decaying gate", "gate")])
def test_the_models_own_gate_is_called_what_it_is(choose, own, other):
    options = {"context": 64, "documents": 2, "layers": "1", "kept": [3]}
    found = run_analysis(kept_model(choose), char_tokenizer(), "choosers", text_store(), **options)["choosers"]
    names = {row["chooser"] for row in found["rows"]}
    assert own in names and other not in names


def test_rows_lie_between_the_window_and_full_attention():
    options = {"context": 64, "documents": 3, "layers": "1", "kept": [3, 64]}
    found = run_analysis(kept_model(), char_tokenizer(), "choosers", text_store(), **options)["choosers"]
    json.dumps(found)
    rows = {(row["chooser"], row["kept"]): row for row in found["rows"]}
    assert list(rows)[:2] == [("full attention", 0), ("window", 0)]
    assert {name for name, _ in rows} == {"full attention", "window", *CHOOSERS} - {"decaying gate"}
    assert rows["window", 0]["change"]["beyond"]["value"] == 0 and rows["full attention", 0]["closed"] == 1
    assert rows["recent", 3]["groups"] != rows["recent", 64]["groups"]
    everything = [rows[name, 64]["groups"]["all"]["value"] for name in ("recent", "key norm", "gate")]
    assert everything == pytest.approx(everything[:1] * 3)


def test_a_number_named_twice_is_measured_once():
    found = run_analysis(bare_model(), char_tokenizer(), "choosers", text_store(), **SMALL | {"kept": [4, 4]})
    rows = [(row["chooser"], row["kept"]) for row in found["choosers"]["rows"]]
    assert len(rows) == len(set(rows)) and ("recent", 4) in rows


def test_a_model_without_gates_has_no_row_for_them():
    found = run_analysis(bare_model(), char_tokenizer(), "choosers", text_store(), **SMALL)["choosers"]
    assert "gate" not in {row["chooser"] for row in found["rows"]}


def test_no_share_is_stated_where_full_attention_saves_nothing():
    sums = {
        "window": [{"beyond": [3.0, 2], "all": [3.0, 2]}] * 3,
        "full attention": [{"beyond": [4.0, 2], "all": [4.0, 2]}] * 3,
    }
    rows = {name: keeping._row(name, 0, {(key, 0): value for key, value in sums.items()}, 0) for name in sums}
    assert rows["full attention"]["change"]["beyond"]["value"] > 0 and rows["full attention"]["closed"] is None


SMALL = {"context": 64, "documents": 2, "kept": [4]}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layers": "99"}, "layer"),
        ({"kept": [0]}, "at least 1"),
        ({"windows": [4]}, "no meaning"),
    ],
)
def test_a_bad_request_is_told_before_anything_is_run(options, message):
    with pytest.raises(UserError, match=message):
        run_analysis(bare_model(), char_tokenizer(), "choosers", text_store(), **SMALL | options)
