"""Plans as data: short and stored forms, presets for any depth, and what every mistake is told."""

import json
from dataclasses import replace

import pytest
import yaml

from anchorlm.core import UserError
from anchorlm.plan import ModelShape, Plan, Reach
from anchorlm.presets import PRESETS, boundary_groups, build, load_plan

LLAMA = ModelShape(32, 32, 8, 128, 4096, 128256, 131072)
SMALL = ModelShape(8, 4, 2, 16, 64, 100, 512)


def small(values):
    return Plan.from_dict(values, 8).check(SMALL)


WINDOW = {"kind": "window", "window": 16}
GOOD = {"attention": WINDOW, "slots": {"a": {"write": 1, "chunk": 16}}}


def with_slot(**values):
    return GOOD | {"slots": {"a": {"write": 1, "chunk": 16} | values}}


BAD = {
    "unknown key": ({"atention": WINDOW}, "the plan has an unknown key 'atention'; did you mean 'attention'?"),
    "not a mapping": ([1], r"the plan is \[1\]; it must be a mapping"),
    "reach not a mapping": ({"attention": "window"}, "attention is 'window'; it must be a mapping"),
    "layers a list": ({"layers": [1]}, r"layers is \[1\]; it must be a mapping"),
    "slots a list": ({"slots": [1]}, r"slots is \[1\]; it must be a mapping"),
    "slot empty": ({"slots": {"a": None}}, "slots.a is None; it must be a mapping"),
    "unknown reach key": ({"attention": {"windw": 3}}, "attention has an unknown key 'windw'; did you mean 'window'?"),
    "unknown kind": ({"attention": {"kind": "windw"}}, "layer 0.kind is 'windw'; did you mean 'window'?"),
    "window missing": ({"attention": {"kind": "window"}}, "layer 0.window is None; .* at least 1"),
    "window zero": ({"attention": WINDOW | {"window": 0}}, "layer 0.window is 0; .* at least 1"),
    "window negative": ({"attention": WINDOW | {"window": -4}}, "layer 0.window is -4; .* at least 1"),
    "window a word": ({"attention": WINDOW | {"window": "16"}}, "layer 0.window is '16'; .* whole number"),
    "window true": ({"attention": WINDOW | {"window": True}}, "layer 0.window is True; .* whole number"),
    "window with full": ({"attention": {"window": 4}}, "layer 0.window is 4 but kind is 'full'; only kind 'window'"),
    "segment with window": ({"attention": WINDOW | {"segment": 4}}, "layer 0.segment is 4 but kind is 'window'"),
    "segment zero": ({"attention": {"kind": "segment", "segment": 0}}, "layer 0.segment is 0; .* at least 1"),
    "sinks negative": ({"attention": WINDOW | {"sinks": -1}}, "layer 0.sinks is -1; .* at least 0"),
    "sinks without window": ({"attention": {"sinks": 4}}, "layer 0.sinks is 4 but kind is 'full'; only kind 'window'"),
    "layer too high": ({"layers": {"99": {"kind": "full"}}}, "layers names layers '99'; the model has layers 0 to 7"),
    "layer range reversed": ({"layers": {"5-3": {}}}, "layers names layers '5-3'; the model has layers 0 to 7"),
    "layer a raised digit": ({"layers": {"\u00b2": {}}}, "write a layer such as 7"),
    "layer a word": ({"layers": {"last": {}}}, "layers names 'last'; write a layer such as 7"),
    "layer twice": ({"layers": {"1": {}, "0-2": {}}}, "layers.0-2 names layer 1 again; name each layer once"),
    "named layer's field": ({"layers": {"3": WINDOW | {"window": 0}}}, "layer 3.window is 0"),
    "slot key": (with_slot(chnk=4), "slots.a has an unknown key 'chnk'; did you mean 'chunk'?"),
    "slot name": ({"slots": {"a.b": {"write": 0}}}, "slot name 'a.b' is not allowed; use letters"),
    "slot name taken": ({"slots": {"values": {"write": 0}}}, "slot name 'values' is taken .* such as 'values_slot'"),
    "no writer": ({"slots": {"a": {"read": [1]}}}, "slots.a.write is missing; name the layer"),
    "writer too high": (with_slot(write=8), "slots.a.write names layer 8; the model has layers 0 to 7"),
    "writer a word": (with_slot(write="1"), "slots.a.write names layer '1'"),
    "reader too high": (with_slot(read=[1, 99]), "slots.a.read names layer 99; the model has layers 0 to 7"),
    "reader below": (with_slot(read=[0, 1]), "slots.a.read names layer 0, below its writer, layer 1"),
    "readers empty": (with_slot(read=[]), "slots.a.read is empty"),
    "reader twice": (with_slot(read=[1, 2, 1]), r"slots.a.read names a layer twice: \[1, 2, 1\]"),
    "readers as ranges, twice": (with_slot(read="1-3,2"), "slots.a.read names a layer twice"),
    "rule": (with_slot(rule="swiglu"), "slots.a.rule is 'swiglu'; .* did you mean 'swiglu-ttt'?"),
    "chunk zero": (with_slot(chunk=0), "slots.a.chunk is 0; .* at least 1"),
    "chunk a fraction": (with_slot(chunk=2.5), "slots.a.chunk is 2.5; .* whole number"),
    "lag negative": (with_slot(lag=-1), "slots.a.lag is -1; .* at least 0"),
    "detach negative": (with_slot(detach=-1), "slots.a.detach is -1"),
    "conv a word": (with_slot(conv="3"), "slots.a.conv is '3'"),
    "heads": (with_slot(heads="all"), "slots.a.heads is 'all'; allowed: kv, q"),
    "mix": (with_slot(mix="blend"), "slots.a.mix is 'blend'; allowed: add"),
    "rope": (with_slot(rope="abs"), "slots.a.rope is 'abs'"),
    "act": (with_slot(act="relu"), "slots.a.act is 'relu'"),
    "silent": (with_slot(silent="yes"), "slots.a.silent is 'yes'; it must be true or false"),
    "map kind": (with_slot(map={"kind": "caley"}), "slots.a.map.kind is 'caley'; did you mean 'cayley'?"),
    "map key": (with_slot(map={"plane": 3}), "slots.a.map has an unknown key 'plane'; did you mean 'planes'?"),
    "too many planes": (with_slot(map={"kind": "planes", "planes": 9}), "planes is 9; a head of 16 has at most 8"),
    "option key": (with_slot(options={"steps": 1.0}), "options has an unknown key 'steps'; did you mean 'step'?"),
    "option of another rule": (with_slot(rule="linear", options={"muon": True}), "options has an unknown key 'muon'"),
    "step zero": (with_slot(options={"step": 0}), "slots.a.options.step is 0; it must be a positive number"),
    "step not a number": (with_slot(options={"step": float("nan")}), "slots.a.options.step is nan"),
    "ratio negative": (with_slot(options={"ratio": -1.0}), "slots.a.options.ratio is -1.0; it must be a positive"),
    "loss": (with_slot(options={"loss": "mse"}), "slots.a.options.loss is 'mse'; allowed: dot, squared"),
    "row norm": (with_slot(options={"row_norm": "before"}), "slots.a.options.row_norm is 'before'"),
    "muon a word": (with_slot(options={"muon": "yes"}), "slots.a.options.muon is 'yes'; it must be true or false"),
    "gap": (with_slot(chunk=17), "slots.a.chunk is 17 with lag 0, but layer 1 sees window 16: up to 1 tokens"),
    "gap by lag": (with_slot(lag=1), "slots.a.chunk is 16 with lag 1, but layer 1 sees window 16: up to 16 tokens"),
    "gap in a later reader": (
        with_slot(read=[1, 3]) | {"layers": {"3": WINDOW | {"window": 4}}}, "but layer 3 sees window 4: up to 12 tokens"
    ),
    "gap with no attention": (with_slot() | {"attention": {"kind": "none"}}, "layer 1 sees none: up to 16 tokens"),
    "gap in a segment": (
        with_slot() | {"attention": {"kind": "segment", "segment": 8}}, "layer 1 sees segment 8: up to 8 tokens"
    ),
    "heads not a mapping": ({"attention": WINDOW | {"heads": [0]}}, r"attention.heads is \[0\]; it must be a mapping"),
    "head's reach a number": ({"attention": WINDOW | {"heads": {0: 4}}}, "attention.heads.0 is 4; it must be a map"),
    "head out of range": (
        {"layers": {"3": WINDOW | {"heads": {2: "full"}}}}, "layer 3.heads names head 2; the model has KV heads 0 to 1"
    ),
    "head a word": ({"layers": {"3": {"heads": {"last": "full"}}}}, "layers.3.heads names 'last'; write a KV head"),
    "head range reversed": ({"layers": {"3": {"heads": {"1-0": "full"}}}}, "layers.3.heads names '1-0'; write a KV"),
    "heads a zero": ({"attention": WINDOW | {"heads": 0}}, "attention.heads is 0; it must be a mapping"),
    "head beyond all": ({"layers": {"3": {"heads": {"0-9" + 20 * "9": "full"}}}}, "layers.3.heads names '0-9999"),
    "head range endless": ({"layers": {"3": {"heads": {"0-99999999": "full"}}}}, "heads names '0-99999999'; write"),
    "head twice": (
        {"layers": {"3": {"heads": {1: "full", "0-1": "none"}}}}, "layers.3.heads.0-1 names head 1 again; name each"
    ),
    "head's kind": ({"layers": {"3": {"heads": {0: "ful"}}}}, "layer 3.heads.0.kind is 'ful'; did you mean 'full'?"),
    "head's window": ({"layers": {"3": {"heads": {0: "window"}}}}, "layer 3.heads.0.window is None; .* at least 1"),
    "head's key": ({"attention": {"heads": {0: {"windw": 3}}}}, "attention.heads.0 has an unknown key 'windw'"),
    "head's sinks": ({"attention": {"heads": {0: {"sinks": 3}}}}, "layer 0.heads.0.sinks is 3 but kind is 'full'"),
    "heads of a head": ({"attention": {"heads": {0: {"heads": {1: "full"}}}}}, "layer 0.heads.0 has heads; a head has"),
    "heads, a window and no kind": ({"layers": {"3": {"window": 4, "heads": {0: "full"}}}}, "layer 3.window is 4"),
    "gap in a head": (
        with_slot() | {"layers": {"1": {"heads": {0: WINDOW | {"window": 9}}}}}, "layer 1 sees window 9: up to 7 tokens"
    ),
    "no head behind a window": (
        with_slot(rule="kept") | {"layers": {"1": {"heads": {"0-1": "full"}}}},
        "slots.a.read names layer 1, where every KV head has a reach of its own; rule 'kept' needs one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_every_mistake_names_place_value_and_what_is_allowed(name):
    values, message = BAD[name]
    with pytest.raises(UserError, match=message) as error:
        small(values)
    assert "\n" not in str(error.value)


def test_what_is_allowed_is_allowed():
    small(GOOD)
    small(with_slot(chunk=17, gap=True))
    small(with_slot(chunk=8, lag=1))
    small(with_slot() | {"attention": {"kind": "segment", "segment": 16}})
    small(with_slot(read="1-3,5", map="planes") | {"attention": {}})


def test_ranges_and_single_layers():
    plan = small({"attention": WINDOW, "layers": {"2-4": {"kind": "full"}, 6: {"kind": "none"}}})
    assert [r.kind for r in plan.layers] == ["window", "window", "full", "full", "full", "window", "none", "window"]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("layers", [1, 2, 5, 6, 30, 32])
def test_presets_fit_any_depth_and_round_trip(name, layers):
    shape = ModelShape(layers, 4, 2, 16, 64, 100, 512)
    plan = build(name, shape)
    stored = yaml.safe_load(yaml.safe_dump(plan.to_dict()))
    assert Plan.from_dict(stored, layers) == plan
    assert Plan.from_dict(stored, layers).to_dict() == plan.to_dict()


def test_presets_are_the_papers_on_32_layers():
    assert boundary_groups(32) == [[0, 1], [28, 29, 30, 31]]
    slots = {name: build(name, LLAMA).slots for name in PRESETS}
    assert [(s.write, s.read) for s in slots["anchor"].values()] == [(0, (0, 1)), (28, (28, 29, 30, 31))]
    assert [len(slots[n]) for n in ("swa", "anchor-f", "anchor-i", "anchor-private", "anchor-hybrid")] == [
        0,
        32,
        28,
        6,
        8,
    ]
    hybrid = build("anchor-hybrid", LLAMA)
    assert [i for i, r in enumerate(hybrid.layers) if r.kind == "full"] == list(range(3, 32, 4))
    assert [s.read for s in hybrid.slots.values()][:2] == [(0, 1, 2), (4, 5, 6)]
    assert {(r.window, r.sinks) for r in build("swa", LLAMA).layers} == {(512, 4)}


def test_every_layer_is_read_by_at_most_one_slot_in_every_preset():
    for name in PRESETS:
        plan = build(name, LLAMA)
        assert all(len(plan.reads(i)) <= 1 and len(plan.writes(i)) <= 1 for i in range(32))


def test_preset_values_reach_every_slot_and_are_checked():
    plan = build("anchor", SMALL, window=32, sinks=0, chunk=8, heads="kv", map={"kind": "expm"}, options={"step": 0.5})
    assert {(r.window, r.sinks) for r in plan.layers} == {(32, 0)}
    for slot in plan.slots.values():
        assert (slot.chunk, slot.heads, slot.map.kind, slot.options.step) == (8, "kv", "expm", 0.5)
    assert build("anchor", SMALL, rule="delta").slots["head"].rule_options.step == 0.5
    with pytest.raises(UserError, match="plan 'ancor' is neither a file nor a preset; did you mean 'anchor'?"):
        build("ancor", SMALL)
    with pytest.raises(UserError, match="plan 'swa' takes no 'chunk'; it has no slot"):
        build("swa", SMALL, chunk=4)
    with pytest.raises(UserError, match="unknown key 'chnk'"):
        build("anchor", SMALL, chnk=4)
    with pytest.raises(UserError, match="'write' cannot be set for every slot"):
        build("anchor", SMALL, write=3)


def test_plan_files_with_overrides(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    assert load_plan(file, SMALL) == small(GOOD)
    changed = load_plan(file, SMALL, {"slots": {"a": {"chunk": 8}}, "layers": {"2": {"kind": "full"}}})
    assert (changed.slots["a"].chunk, changed.layers[2].kind) == (8, "full")
    assert load_plan("anchor", SMALL, {"slots": {"head": {"chunk": 4}}}).slots["head"].chunk == 4
    with pytest.raises(UserError, match="no such file"):
        load_plan(tmp_path / "missing.yaml", SMALL)
    for text in ("", "- 1", "a: [", "\x00"):
        file.write_text(text)
        with pytest.raises(UserError, match="is empty or not a mapping|is not YAML"):
            load_plan(file, SMALL)


def test_other_plans_for_the_same_weights():
    plan = small(with_slot())
    assert plan.teacher() == Plan((Reach(),) * 8)
    assert plan.without_slots() == Plan(plan.layers)
    assert plan.select_slots(["a"]) == plan and plan.select_slots([]) == plan.without_slots()


HEADS = {
    "attention": WINDOW | {"sinks": 4},
    "layers": {
        "1": {"heads": {1: "full"}},
        "2-3": {"kind": "full", "heads": {"0": {"kind": "window", "window": 8}}},
        "5": {"heads": {"0-1": "full"}},
    },
}


def test_heads_alone_leave_the_other_heads_as_the_plan_has_them():
    plan, window = small(HEADS), Reach("window", 16, 4)
    assert plan.layers[1] == replace(window, heads=((1, Reach()),))
    assert plan.layers[1].groups(2) == {window: (0,), Reach(): (1,)}
    assert plan.layers[3] == Reach(heads=((0, Reach("window", 8)),))
    assert plan.layers[5].groups(2) == {Reach(): (0, 1)} and plan.layers[6] == window
    assert [reach.unlimited for reach in plan.layers[:3]] == [False, True, True]
    over = small({"attention": WINDOW | {"heads": {0: "full"}}, "layers": {"2": {"heads": {1: "none"}}}}).layers
    assert over[2] == Reach("window", 16, heads=((0, Reach()), (1, Reach("none"))))
    assert over[3].groups(2)[Reach()] == (0,)


def test_heads_are_stored_and_read_again():
    plan = small(HEADS)
    stored = yaml.safe_load(yaml.safe_dump(plan.to_dict()))
    assert stored["layers"]["1"] == HEADS["attention"] | {"heads": {"1": {"kind": "full"}}}
    assert Plan.from_dict(stored, 8) == plan == Plan.from_dict(json.loads(json.dumps(stored)), 8)
    odd = small({"attention": HEADS["attention"] | {"heads": {0: "full"}}, "layers": {"2": WINDOW}})
    assert Plan.from_dict(odd.to_dict(), 8) == odd


def test_windows_of_heads_count_and_are_narrowed():
    plan = small({"layers": {"1-2": {"heads": {1: WINDOW}}}})
    assert plan.common_window == 16
    assert plan.narrowed(0.5).layers[1] == Reach(heads=((1, Reach("window", 8)),))
    assert plan.narrowed(0.5).layers[0] == Reach()


def test_a_plan_built_in_python_is_checked_alike():
    for heads, line in (
        (((0, Reach()), (0, Reach("none"))), "heads names a head twice"),
        (((True, Reach()),), "names head True; the model has KV heads 0 to 1"),
        (((-1, Reach()),), "names head -1"),
    ):
        with pytest.raises(UserError, match=line):
            Plan((Reach("window", 4, heads=heads),) * 8).check(SMALL)


def test_a_plan_of_another_depth_is_refused():
    with pytest.raises(UserError, match="the plan has 8 layers; the model has 32"):
        small(GOOD).check(LLAMA)


def test_shape_reads_configs_with_and_without_a_head_width():
    values = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
        "vocab_size": 9,
        "model_type": "qwen3",
    }
    shape = ModelShape.from_config(values | {"max_position_embeddings": 77})
    assert (shape.head_dim, shape.kv_heads, shape.family, shape.max_positions) == (16, 4, "qwen3", 77)
    shape = ModelShape.from_config(values | {"max_position_embeddings": 77, "head_dim": 32, "num_key_value_heads": 2})
    assert (shape.head_dim, shape.kv_heads) == (32, 2)


def test_the_bare_word_true_is_a_place():
    slot = "{rule: kept, write: 1, chunk: 16, options: {positions: %s}}"
    written = f"{{slots: {{a: {slot}}}, attention: {{kind: window, window: 16}}}}"
    plans = [small(yaml.safe_load(written % word)) for word in ("true", "'true'")]
    assert plans[0] == plans[1] and plans[0].slots["a"].rule_options.positions == "true"
    with pytest.raises(UserError, match="slots.a.options.positions is False; allowed: compact, true"):
        small(yaml.safe_load(written % "false"))
