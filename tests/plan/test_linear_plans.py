"""LoLCATs, Liger, Lizard and Titan-Llama as plans: presets, what fits what, stored forms, the bytes of the papers."""

import pytest

from anchorlm.convert.summary import shape_config, summary
from anchorlm.core import UserError
from anchorlm.describe import describe_slots, notes, state_bytes
from anchorlm.plan import ModelShape, Plan, Reach
from anchorlm.plan_parts import Mix
from anchorlm.presets import build, load_plan

LLAMA = ModelShape(32, 32, 8, 128, 4096, 128256, 131072)
SMALL = ModelShape(8, 4, 2, 16, 64, 100, 512)
WINDOW = {"kind": "window", "window": 16}


def slots(attention=WINDOW, **values):
    return {"attention": attention, "slots": {"a": {"write": 1, "chunk": 16} | values}}


HEDGEHOG = {"rule": "hedgehog"}
BAD = {
    "no sums to share": (slots(mix="shared"), "slots.a.mix is 'shared'; rule 'swiglu-ttt' takes add, sum, convex"),
    "gla has no sums": (slots(rule="gla", mix="shared"), "slots.a.mix is 'shared'; rule 'gla' takes add, sum"),
    "heads of a rule of all": (slots(rule="linear", heads=[1]), r"slots.a.heads is \[1\]; rule 'linear' takes q or"),
    "follow without a gate": (
        slots(rule="kept", options={"choose": "recent", "follow": 1}), "options.follow is 1; it is for choose",
    ),
    "follow below 0": (slots(rule="kept", options={"follow": -1}), "options.follow is -1; it must be a finite"),
    "a head twice": (slots(rule="kept", heads=[1, 1]), r"slots.a.heads is \[1, 1\]; name at least one KV head, each"),
    "no head": (slots(rule="kept", heads=[]), r"slots.a.heads is \[\]; name at least one KV head"),
    "head out of range": (slots(rule="kept", heads=[2]), "slots.a.heads names head 2; the model has KV heads 0 to 1"),
    "a head with another reach": (
        slots(WINDOW | {"heads": {1: "full"}}, rule="kept", heads=[1]), "head 1, which has a reach of its own",
    ),
    "kept takes joint": (slots(rule="kept", mix="sum"), "slots.a.mix is 'sum'; rule 'kept' takes joint"),
    "shared twice": (slots(**HEDGEHOG, lag="self"), "slots.a.mix is 'shared' with lag 'self'; it takes lag 'evicted'"),
    "shared normed": (slots(**HEDGEHOG, norm=True), "slots.a.mix is 'shared' with norm true"),
    "lag of no rule": (slots(lag="selv"), "slots.a.lag is 'selv'; did you mean 'self'"),
    "a rule by the chunk": (slots(lag="self"), "slots.a.lag is 'self'; rule 'swiglu-ttt' takes chunk or segment"),
    "gla keeps nothing": (slots(rule="gla", lag="evicted"), "slots.a.lag is 'evicted'; rule 'gla' takes self, chunk"),
    "evicted gate": (
        slots(**HEDGEHOG, options={"gate": "scalar"}), "slots.a.options.gate is 'scalar' with lag 'evicted'",
    ),
    "evicted from all": (slots({"kind": "full"}, **HEDGEHOG), "lag is 'evicted', but layer 1 sees full"),
    "evicted with sinks": (slots(WINDOW | {"sinks": 2}, **HEDGEHOG), "layer 1 sees window 16 [+] 2 sinks"),
    "evicted unplaced": (slots(**HEDGEHOG, rope="none"), "slots.a.rope is 'none' with lag 'evicted'; layer 1 needs"),
    "readers see less": (
        slots(**HEDGEHOG, read=[1, 2]) | {"layers": {"2": {"kind": "window", "window": 8}}},
        "layer 2 sees window 8 and layer 1, the writer, another part",
    ),
    "segment": (slots(lag="segment"), "slots.a.lag is 'segment' with chunk 16, but layer 1 sees window 16"),
    "conv": (slots(rule="gla", conv=3), "slots.a.conv is 3; rule 'gla' takes 0 alone"),
    "width": (slots(**HEDGEHOG, options={"width": 0}), "slots.a.options.width is 0"),
    "features": (slots(**HEDGEHOG, options={"features": "relu"}), "slots.a.options.features is 'relu'; allowed: "),
    "gate start": (slots(rule="hedgehog", options={"gate_start": 1}), "slots.a.options.gate_start is 1; .* below 1"),
    "temperature": (slots(rule="gla", options={"temperature": 0}), "slots.a.options.temperature is 0; .* positive"),
    "variant": (slots(rule="gla", options={"variant": "gle"}), "slots.a.options.variant is 'gle'; did you mean 'gla'"),
    "slots": (slots(rule="gsa", options={"slots": 0}), "slots.a.options.slots is 0"),
    "share": (slots(mix={"kind": "convex", "share": 1.5}), "slots.a.mix.share is 1.5; .* above 0 and below 1"),
    "share a word": (slots(mix={"kind": "sum", "share": "much"}), "slots.a.mix.share is 'much'; .* above 0$"),
    "share of add": (slots(mix={"kind": "add", "share": 0.5}), "slots.a.mix.share is 0.5; mix 'add' has none"),
    "share and start": (slots(mix={"kind": "sum", "share": 1, "start": 2}), "slots.a.mix.start is 2 but share is 1"),
    "affine": (slots(mix={"kind": "sum", "affine": True}), "slots.a.mix.affine is True; only mix 'shared' has it"),
    "mix key": (slots(mix={"knd": "sum"}), "slots.a.mix has an unknown key 'knd'; did you mean 'kind'"),
    "meta": ({"attention": {"meta": 2}}, "layer 0.meta is 2 but kind is 'full'; only kind 'window' or 'terrace'"),
    "positions": ({"attention": WINDOW | {"positions": "alibi"}}, "layer 0.positions is 'alibi'"),
    "blind sinks": ({"attention": WINDOW | {"sinks": 1, "positions": "none"}}, "layer 0.sinks is 1 but positions is"),
    "blind kept": (
        slots(WINDOW | {"positions": "none"}, rule="kept"), "layer 1 without RoPE; rule 'kept' needs positions 'rope'",
    ),
    "terrace": ({"attention": {"kind": "terrace"}}, "layer 0.window is None"),
}  # fmt: skip


NMM = {"rule": "nmm"}
BAD |= {
    "depth": (slots(**NMM, options={"depth": 0}), "slots.a.options.depth is 0; .* at least 1"),
    "nmm width": (slots(**NMM, options={"width": 0.5}), "slots.a.options.width is 0.5; .* whole number"),
    "nmm group": (slots(**NMM, options={"group": 0}), "slots.a.options.group is 0; .* at least 1"),
    "nmm momentum": (slots(**NMM, options={"momentum": 0.9}), "slots.a.options.momentum is 0.9; .* true or false"),
    "nmm has no sums": (slots(**NMM, mix="shared"), "slots.a.mix is 'shared'; rule 'nmm' takes add, sum"),
    "gate": (slots(mix={"kind": "convex", "gate": "key"}), "slots.a.mix.gate is 'key'; allowed: input, query"),
    "gate of sum": (slots(mix={"kind": "sum", "gate": "query"}), "slots.a.mix.gate is 'query'; only mix 'add' and"),
    "gate and share": (
        slots(mix={"kind": "convex", "gate": "query", "share": 0.5}), "slots.a.mix.gate is 'query'; only .* a learned",
    ),
    "unlike segments": (
        slots({"kind": "segment", "segment": 8}, **NMM, lag="segment"), "chunk 16, but layer 1 sees segment 8; both",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_told_by_name(case):
    values, said = BAD[case]
    with pytest.raises(UserError, match=said):
        Plan.from_dict(values, 8).check(SMALL)


@pytest.mark.parametrize("name", ["lolcats", "liger", "lizard"])
@pytest.mark.parametrize("shape", [LLAMA, SMALL])
def test_presets_fit_any_shape_and_come_back(name, shape):
    plan = build(name, shape, window=16)
    assert Plan.from_dict(plan.to_dict(), shape.layers) == plan
    assert plan.common_window == 16 and len(plan.slots) == shape.layers
    again = load_plan(name, shape, {"window": 16, "slots": {"l1": {"chunk": 8}}})
    assert again.slots["l1"].chunk == 8 and again.slots["l0"] == plan.slots["l0"]


def test_presets_are_what_the_papers_say():
    cats, liger, lizard = (build(name, LLAMA) for name in ("lolcats", "liger", "lizard"))
    assert cats.layers[0] == Reach("window", 64) and cats.slots["l0"].mix == Mix("shared")
    assert build("lolcats", LLAMA, kind="terrace").layers[31] == Reach("terrace", 64)
    assert liger.slots["l0"].mix == Mix("convex", share=0.5) and liger.slots["l0"].rule_options.temperature == 16
    assert build("liger", LLAMA, full_every=8).layers[7::8] == (Reach(),) * 4
    assert lizard.layers[0] == Reach("window", 128, meta=4, positions="none")
    hybrid = build("lizard", LLAMA, full_every=2)
    assert hybrid.layers[1::2] == (Reach(),) * 16 and sorted(hybrid.slots) == sorted(f"l{i}" for i in range(0, 32, 2))
    assert build("liger", LLAMA, rule="gsa").slots["l3"].mix.share == 0.5


def test_the_bytes_of_llama_3_1_8b():
    """LoLCATs as its public cache counts it, every state twice (Anchor's Table 2), and once; Liger and Lizard once."""
    cats = build("lolcats", LLAMA)
    held = state_bytes(cats, LLAMA)
    assert held["fast weights"] == 67_633_152 == 135_266_304 // 2
    assert held["window ring"] == 63 * 2 * 8 * 128 * 2 * 32 and held["chunk buffer"] == 0
    assert "67,633,152 bytes of memory" in notes(cats, LLAMA)[0] and "135,266,304" in notes(cats, LLAMA)[0]
    assert state_bytes(build("liger", LLAMA), LLAMA)["fast weights"] == 16_777_216
    assert state_bytes(build("lizard", LLAMA), LLAMA)["fast weights"] == 8 * (256 * 128 + 256) * 4 * 32
    assert describe_slots(cats, LLAMA)[0]["lag"] == "evicted"


def test_notes_give_the_half_life_of_a_memory():
    (line,) = notes(build("liger", LLAMA), LLAMA)
    assert line.startswith("l0 to l31: the memory halves every 16 tokens where keys are zero, beside a window of 64")
    assert line.endswith("a half-life of 1,000 tokens takes keys of 4.5 or more")
    assert "every 69 tokens before training" in notes(build("lizard", LLAMA), LLAMA)[0]
    assert not notes(build("anchor-f", LLAMA), LLAMA)


TITAN_MISTAKES = {
    "later": ({"later": "none"}, "later is 'none'; allowed: full, window"),
    "no layer": ({"converted": 0}, "converted is 0; .* at least 1"),
    "empty": ({"converted": []}, r"converted is \[\]; name a layer"),
    "beyond": ({"converted": [0, 8]}, "converted names layer 8; the model has layers 0 to 7"),
    "a word": ({"converted": "all"}, "converted is 'all'; .* whole number"),
    "chunk": ({"chunk": 8}, "lag is 'segment' with chunk 8, but layer 0 sees segment 512; both must be equal"),
    "segment": ({"segment": 0}, "segment is 0|chunk is 0"),
}


@pytest.mark.parametrize("case", TITAN_MISTAKES)
def test_what_titan_llama_cannot_be_is_told(case):
    values, said = TITAN_MISTAKES[case]
    with pytest.raises(UserError, match=said):
        build("titan-llama", SMALL, **values)


@pytest.mark.parametrize("shape", [LLAMA, SMALL])
def test_titan_llama_fits_any_shape_and_comes_back(shape):
    plan = build("titan-llama", shape, segment=16, window=8, later="window", converted=[0, 5])
    assert Plan.from_dict(plan.to_dict(), shape.layers) == plan
    assert list(plan.slots) == ["l0", "l5"] and plan.layers[1] == Reach("window", 8, 4)
    slot, layer = plan.slots["l5"], plan.layers[5]
    assert layer == Reach("segment", segment=16) and slot.lag == "segment" and slot.chunk == 16
    assert slot.mix == Mix("convex", gate="query") and slot.heads == "kv" and not slot.norm
    assert list(build("titan-llama", shape).slots) == ["l0", "l1", "l2", "l3"]
    assert len(build("titan-llama", shape, converted=99).slots) == shape.layers


@pytest.mark.parametrize("name,added", [("llama-3.2-1b", 1.408), ("smollm2-135m", 1.118), ("llama-3.1-8b", 0.849)])
def test_titan_llama_adds_about_one_percent(name, added):
    """Percent of the base. The published 17.23 million on Llama-3.2-1B are 1.4 %."""
    config = shape_config(name)
    shape = ModelShape.from_config(config)
    new = summary(config, build("titan-llama", shape))["parameters"]
    width, dim = shape.query_heads * shape.head_dim, shape.head_dim
    gate = width * width + width
    memory = shape.kv_heads * (
        64 * 64 + 2 * 64 * dim + 3 * (shape.hidden + 1) + 1
    )  # step, momentum, decay; value scale
    assert new["memory"] == 4 * (gate + memory + 2 * dim * (shape.kv_heads + shape.query_heads))
    assert 100 * new["memory"] / new["backbone"] == pytest.approx(added, abs=1e-3)


def test_the_state_of_titan_llama_on_llama_3_2_1b_is_the_published_one():
    """1.57 MB in fp32 for four layers, and as much again for the momentum."""
    shape = ModelShape.from_config(shape_config("llama-3.2-1b"))
    held = state_bytes(build("titan-llama", shape), shape)
    assert held["fast weights"] == held["momentum"] == 1_572_864 == 4 * 8 * 3 * 64 * 64 * 4
    offline = state_bytes(build("titan-llama", shape, options={"group": 4}), shape)
    assert offline["fast weights"] == 2 * 1_572_864 + 4 * 8 * 4
