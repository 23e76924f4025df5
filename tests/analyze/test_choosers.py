"""Choosers of kept tokens: against loops, streams that never look ahead, and the analysis from end to end."""

from __future__ import annotations

import json
import math

import pytest
import torch

from anchorlm.analyze import choosers, run_analysis
from anchorlm.analyze.choosers import BLOCK, CHOOSERS, Layer
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
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 9, 167)


def layer_of(length: int, ids: torch.Tensor | None = None, window: Reach = WINDOW) -> Layer:
    model = hybrid("llama", "swa", layers=2)
    x = model.get_input_embeddings()(tokens(1, length) if ids is None else ids)
    decoder = model.backbone.model.layers[0]

    def rotary(places: torch.Tensor):
        return model.backbone.model.rotary_emb(x, places)

    return Layer(decoder.self_attn, decoder.input_layernorm(x), rotary, window, Reach())


def beyond(seen: torch.Tensor, window: Reach) -> torch.Tensor:
    """Of the tokens that a chooser shows, those that the window does not."""
    place = torch.arange(seen.shape[2])
    return seen & (place[:, None] - place[None] >= window.window)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", STREAMS)
@torch.inference_mode()
def test_no_query_sees_more_than_so_many_and_none_is_wasted(name, length):
    layer = layer_of(length)
    seen = beyond(CHOOSERS[name](layer, 5), WINDOW).sum(-1)
    gone = [max(0, first + BLOCK - WINDOW.window - WINDOW.sinks) for first in range(0, length, BLOCK)]
    for number, left in enumerate(gone):
        block = seen[:, number * BLOCK : (number + 1) * BLOCK]
        assert int(block.max()) <= 5
        if block.shape[1] == BLOCK:
            assert (block[:, -1] == min(5, left)).all()


@pytest.mark.parametrize("name", STREAMS)
@torch.inference_mode()
def test_a_stream_does_not_look_ahead(name):
    ids = tokens(1, 3 * BLOCK)
    other = ids.clone()
    other[:, 2 * BLOCK :] = (other[:, 2 * BLOCK :] + 3) % 40
    first, second = (CHOOSERS[name](layer_of(3 * BLOCK, each), 5) for each in (ids, other))
    assert torch.equal(first[:, : 2 * BLOCK], second[:, : 2 * BLOCK])


@torch.inference_mode()
def test_recent_tokens_are_a_wider_window():
    layer = layer_of(167, window=Reach("window", 9))
    seen = choosers.recent(layer, 167)
    wide = attend(layer.attention, layer.x, layer.rotary, seen, layer.window, layer.own)
    whole = Layer(layer.attention, layer.x, layer.rotary, Reach("window", 200), Reach())
    none = torch.zeros(1, 1, 167, dtype=torch.bool)
    assert_near(wide, attend(whole.attention, whole.x, whole.rotary, none, whole.window, whole.own), 1e-9)


@torch.inference_mode()
def test_attention_received_against_a_loop_over_queries():
    length, count = 2 * BLOCK + 5, 4
    layer = layer_of(length)
    q, k, _ = layer.attention.project(layer.x)
    angles = layer.rotary(torch.arange(length)[None])
    q, k = rotate(q, *angles)[0], rotate(k, *angles)[0]
    found = choosers.received(layer, count)
    for head in range(2):
        total, dropped = [0.0] * length, set()
        for first, last, left in layer.blocks:
            pool = [s for s in range(WINDOW.sinks, left) if s not in dropped]
            kept = set(sorted(pool, key=lambda s: (-total[s], s))[:count])
            dropped |= set(pool) - kept
            assert set(found[head, first].nonzero().flatten().tolist()) == kept
            for t in range(first, last):
                sight = [s for s in range(t + 1) if s < WINDOW.sinks or t - s < WINDOW.window or s in kept]
                for query in (2 * head, 2 * head + 1):
                    scores = {s: float(q[query, t] @ k[head, s]) * layer.attention.scale for s in sight}
                    mass = sum(math.exp(score) for score in scores.values())
                    for s, score in scores.items():
                        total[s] += math.exp(score) / mass


def kept_model():
    """Layer 1 keeps exact tokens, chosen by a gate."""
    slot = {"rule": "kept", "write": 1, "chunk": 4, "options": {"tokens": 5}}
    stored = {"attention": {"kind": "window", "window": 6, "sinks": 2}, "slots": {"k": slot}}
    return shake_memory(AnchorForCausalLM.from_backbone(tiny_llama(layers=4), Plan.from_dict(stored, 4))).eval()


def bare_model():
    return AnchorForCausalLM.from_backbone(tiny_llama(layers=4), Plan((Reach("window", 6, 2),) * 4)).eval()


def test_rows_lie_between_the_window_and_full_attention():
    options = {"context": 64, "documents": 3, "layers": "1", "kept": [3, 64]}
    found = run_analysis(kept_model(), char_tokenizer(), "choosers", text_store(), **options)["choosers"]
    json.dumps(found)
    rows = {(row["chooser"], row["kept"]): row for row in found["rows"]}
    assert list(rows)[:2] == [("full attention", 0), ("window", 0)]
    assert {name for name, _ in rows} == {"full attention", "window", *CHOOSERS}
    assert rows["window", 0]["change"]["beyond"]["value"] == 0 and rows["full attention", 0]["closed"] == 1
    assert rows["recent", 3]["groups"] != rows["recent", 64]["groups"]
    everything = [rows[name, 64]["groups"]["all"]["value"] for name in ("recent", "key norm", "gate")]
    assert everything == pytest.approx(everything[:1] * 3)


def test_a_model_without_gates_has_no_row_for_them():
    found = run_analysis(bare_model(), char_tokenizer(), "choosers", text_store(), **SMALL)["choosers"]
    assert "gate" not in {row["chooser"] for row in found["rows"]}


SMALL = {"context": 64, "documents": 2, "kept": [4]}


@pytest.mark.parametrize(
    "options, message", [({"layers": "99"}, "layer"), ({"kept": [0]}, "at least 1"), ({"windows": [4]}, "no meaning")]
)
def test_a_bad_request_is_told_before_anything_is_run(options, message):
    with pytest.raises(UserError, match=message):
        run_analysis(bare_model(), char_tokenizer(), "choosers", text_store(), **SMALL | options)
