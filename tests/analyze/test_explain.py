"""Read-outs, maps, ablation and cost on tiny models: against what is computed by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorlm.analyze import debiased_cka, mean_cosine, run_analysis
from anchorlm.analyze.explain.ablation import axes, groups_off
from anchorlm.analyze.explain.cost import coverage
from anchorlm.analyze.explain.job import Options
from anchorlm.analyze.explain.likeness import jackknife, kinds_of_pairs
from anchorlm.analyze.explain.readouts import read_outs
from anchorlm.analyze.explain.sizes import resized, slots_as
from anchorlm.core import UserError
from anchorlm.data.crossing import cross_window
from anchorlm.eval.ppl import cut, perplexity
from anchorlm.plan import ModelShape, Plan, Reach
from anchorlm.presets import build
from builders import hybrid, tokens
from explained import kept_hybrid, small_hybrid, text_store
from small import char_tokenizer

CONTEXT = {"context": 64, "documents": 3}


@pytest.fixture(scope="module")
def results():
    return run_analysis(small_hybrid(), char_tokenizer(), "similarity,readmaps,ablation", text_store(), **CONTEXT)


def test_similarity_is_that_of_the_read_outs(results):
    found, model = results["similarity"], small_hybrid()
    assert [(r["layer"], r["slot"]) for r in found["readers"]] == [(0, "head"), (1, "tail"), (2, "tail"), (3, "tail")]
    parts = [read_outs(model, p, np.flatnonzero(cross_window(p, 8)) - 1) for p in cut(text_store(), 64, 3)]
    first, last = (torch.cat([part[key] for part in parts]) for key in ((0, "head"), (3, "tail")))
    kept = first.flatten(1).any(1) & last.flatten(1).any(1)
    first, last = first[kept].flatten(1), last[kept].flatten(1)
    assert found["targets"] == len(first) and found["cka"][0][3] == pytest.approx(debiased_cka(first, last), abs=1e-9)
    assert found["cosine"][0][3] == pytest.approx(mean_cosine(first, last, heads=4), abs=1e-9)
    assert found["cka"][1][1] == pytest.approx(1) and abs(found["shuffled"]) < 0.3
    same = found["pairs"]["same slot"]
    assert same["n"] == 3 and same["cka"]["value"] == pytest.approx(np.mean([found["cka"][i][j] for i, j in TAIL]))
    assert same["cka"]["interval"][0] < same["cka"]["value"] < same["cka"]["interval"][1]


TAIL = [(1, 2), (1, 3), (2, 3)]


def test_pairs_and_the_jackknife():
    readers = [(0, "l0"), (1, "l1"), (7, "l7"), (8, "l8"), (29, "l29")]
    pairs = kinds_of_pairs(readers, 30)
    assert pairs["anchors"] == [(0, 1), (0, 4), (1, 4)] and pairs["interior"] == [(2, 3)]
    assert "same slot" not in pairs and len(pairs["all"]) == len(pairs["other slot"]) == 10
    low, high = jackknife(2.0, [1.0, 2.0, 3.0])
    assert (low + high) / 2 == pytest.approx(2) and (high - low) / 2 == pytest.approx(1.96 * math.sqrt(2 / 3 * 2))
    assert jackknife(1.0, [1.0]) is None


def test_read_maps_have_a_row_a_reader(results):
    found = results["readmaps"]
    assert [row["layer"] for row in found["readers"]] == [0, 1, 2, 3] and found["head_dim"] == 8
    for row in found["readers"]:
        assert row["heads"] == 4 and len(row["angles"]["median"]) == 4 and row["reflecting"] == 0
        assert row["stretch"]["low"][0] <= row["stretch"]["median"][0] <= row["stretch"]["high"][0]
        assert 0 < row["share"]["median"] <= 1 + 1e-9 and 0 < row["energy"]["median"] < 1
        way = row["way"]
        lengths = [np.linalg.norm(way[name], axis=1) for name in ("stretched", "turned")]
        np.testing.assert_allclose(*lengths, atol=1e-6)  # a plane is turned within itself
        crossed = np.arctan2(*np.array(way["turned"]).T[::-1]) - np.arctan2(*np.array(way["stretched"]).T[::-1])
        np.testing.assert_allclose(np.cos(crossed - way["angle"]), 1, atol=1e-5)
    fresh = run_analysis(hybrid(shaken=False, dtype=torch.float32), None, "readmaps")["readmaps"]
    assert all(row["share"] is None and row["way"] is None for row in fresh["readers"])


def test_ablation_agrees_with_perplexity(results):
    rows = {row["name"]: row for row in results["ablation"]["rows"]}
    assert list(rows) == ["as it is", "slot head off", "slot tail off", "all slots off", "teacher"]
    model, store = small_hybrid(), text_store()
    own = perplexity(model, store, 64, window=8, limit=3)["groups"]["cross_window"]
    assert rows["as it is"]["groups"]["cross_window"]["ppl"] == pytest.approx(own["ppl"])
    assert rows["as it is"]["change"]["all"]["value"] == 0
    whole, bare = (rows[name]["groups"]["all"]["ppl"] for name in ("as it is", "all slots off"))
    assert rows["all slots off"]["change"]["all"]["value"] == pytest.approx(math.log(bare / whole))
    assert rows["all slots off"]["slot_bytes"] == 0 < rows["slot head off"]["slot_bytes"]
    grid = results["ablation"]["grid"]
    assert [tuple(row["sizes"].values()) for row in grid] == [(w, c, None) for w in (4, 8, 16) for c in (4, 8)]
    own_size = next(row for row in grid if row["sizes"] == {"window": 8, "chunk": 8, "kept": None})
    assert own_size["change"]["all"]["value"] == 0
    forbidden = next(row for row in grid if row["sizes"]["window"] == 4 and row["sizes"]["chunk"] == 8)
    assert "seen by neither" in forbidden["note"] and not forbidden["groups"]


def test_slots_that_keep_less_keep_it_in_proportion():
    plan = kept_hybrid().plan
    slot = plan.slots["k"]
    few = replace(slot, options=replace(slot.rule_options, tokens=1))
    both = replace(plan, slots={"k": replace(slot, options=replace(slot.rule_options, tokens=4)), "few": few})
    assert [s.rule_options.tokens for s in resized(both, kept=8).slots.values()] == [8, 2]
    assert [s.rule_options.tokens for s in resized(both, kept=2).slots.values()] == [2, 1]
    assert resized(both, kept=4) == both == resized(both)


@pytest.mark.parametrize("chunk, kept", [(2, None), (4, 3), (2, 9)])
@torch.inference_mode()
def test_other_sizes_equal_a_model_made_so(chunk, kept):
    model, ids = kept_hybrid(), tokens(1, 50)
    before = model(ids).logits
    plan = resized(model.plan, 8, chunk, kept)
    made = hybrid(plan=plan, dtype=torch.float32)
    made.load_state_dict(model.state_dict())
    with slots_as(model, plan):
        assert torch.equal(model(ids, plan=plan).logits, made(ids).logits)
    assert torch.equal(model(ids).logits, before)


def test_groups_and_axes_follow_the_plan():
    shape = ModelShape(12, 4, 2, 8, 32, 61, 256)
    names = [variant.name for variant in groups_off(build("anchor-i", shape, window=8, chunk=8), 12)]
    assert {"anchor slots off", "interior slots off", "slot l5 off"} <= set(names)
    assert axes(kept_hybrid().plan, Options.of()) == ([3, 6, 12], [2, 4], [2, 5, 10])
    assert axes(small_hybrid().plan, Options.of(windows=(8,))) == ((8,), [4, 8], [None])


def test_coverage_by_brute_force():
    plan = small_hybrid().plan
    found = coverage(plan, "head", 40)
    window = state = both = neither = 0.0
    for t in range(40):
        kinds = [(j < 2 or t - j < 8, j < t // 8 * 8) for j in range(t + 1)]
        window += sum(a and not b for a, b in kinds) / (t + 1)
        state += sum(b and not a for a, b in kinds) / (t + 1)
        both += sum(a and b for a, b in kinds) / (t + 1)
        neither += sum(not a and not b for a, b in kinds) / (t + 1)
    expected = [window / 40, state / 40, both / 40, neither / 40]
    np.testing.assert_allclose(list(found["mean"].values()), expected, atol=1e-12)
    last = found["places"][-1]
    assert last == {"at": 39, "window": [32, 39], "sinks": [0, 1], "state": [0, 31]}
    assert found["slots"] == ["head", "tail"]


def test_cost_counts_states_and_reads_a_table(tmp_path):
    table = {"kind": "results", "table": {"title": "t", "context": 64}, "texts": {"test": {}}, "rows": [
        {"name": "swa", "state_bytes": {"64": 1000},
         "needles": {"heldout": {"64": {"hits": 1, "n": 4, "interval": None}}},
         "texts": {"test": {"all": {"ppl": 9.0, "interval": None}, "cross_window": {"ppl": 8.0, "interval": None}}}},
        {"name": "later", "texts": {}, "needles": {}}]}  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps(table))
    given = {"context": 64, "results": str(tmp_path / "results.json")}
    found = run_analysis(small_hybrid(), None, ["cost"], **given)["cost"]
    three = next(row for row in found["ratios"] if row["ratio"] == 3)
    assert three["states"] == {"private": 3, "shared": 1}
    assert three["state_bytes"]["private"] == 3 * three["state_bytes"]["shared"]
    assert found["trade_off"]["rows"] == [{"name": "swa", "bytes": 1000, "needles": {"value": 0.25, "interval": None},
        "ppl": {"ppl": 9.0, "interval": None}, "cross_window": {"ppl": 8.0, "interval": None}}]  # fmt: skip
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match=r"is not a results\.json of"):
        run_analysis(small_hybrid(), None, "cost", **given)


def test_models_that_cannot_be_analysed_are_named():
    def told(model, what):
        with pytest.raises(UserError) as error:
            run_analysis(model, char_tokenizer(), what, text_store(), name="m", **CONTEXT)
        return str(error.value)

    bare = hybrid(plan=Plan((Reach("window", 6, 2),) * 4))
    assert told(bare, "readmaps").startswith("m has no slot; readmaps needs one")
    assert told(kept_hybrid(), "readmaps") == "m has no read map: map is 'none' in slot k"
    assert told(kept_hybrid(), "similarity") == "similarity compares readers; in m only layer 1 reads ('k')"
    assert "m has no window" in told(hybrid(plan="full"), "knockout")
