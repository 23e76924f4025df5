"""A placement finds the layer that was planted, stops early where nothing is to be found, and goes on where it was."""

import json
import re
import shutil

import pytest
import torch

import anchorlm
from anchorlm.analyze import scan
from anchorlm.analyze.bench import Bench, Trial
from anchorlm.analyze.probes import text_probe
from anchorlm.analyze.scan import LEAST, Lab
from anchorlm.convert.attach import convert
from anchorlm.core import UserError
from anchorlm.eval.parts import Parts
from anchorlm.plan import ModelShape, Plan, Reach
from anchorlm.presets import load_plan
from planted import LAYERS, LENGTH, PLANTED, planted, store
from small import char_tokenizer

QUICK = dict(window=8, sinks=2, budget="100KB", context=LENGTH, needles=False)


def measured(**options):
    return anchorlm.place(planted(), store(), **(QUICK | options))


def timeless(result):
    return {key: value for key, value in json.loads(json.dumps(result)).items() if key != "environment"}


def test_the_planted_layer_is_found_and_no_other():
    found = measured(documents=5, heads=True)
    first, *others = found.layers
    assert first["layer"] == PLANTED and first["matters"] and first["probes"] == 5
    assert first["share"]["value"] == pytest.approx(1) and first["change"]["all"]["interval"][0] > 0.1
    for row in others:  # their attention reaches nothing, so the change is zero to the last bit
        assert row["change"]["all"]["value"] == 0.0 and row["change"]["all"]["interval"] == [0.0, 0.0]
        assert not row["matters"] and row["ended_early"] and row["probes"] == LEAST
    assert [reach.kind for reach in found.plan.layers] == ["full" if i == PLANTED else "window" for i in range(LAYERS)]
    assert found.result["greedy"][0]["layers"] == [PLANTED] and len(found.result["greedy"]) == 1
    assert found.result["greedy"][0]["loss"]["all"]["value"] == found.result["teacher"]["all"]["value"]
    assert {row["layer"] for row in found.result["heads"]} == {PLANTED} and len(found.result["heads"]) == 2


def test_the_model_is_given_back_as_it_was():
    model = planted()
    ids = torch.arange(30)[None]
    before, attention = model(ids).logits, model.model.layers[0].self_attn
    anchorlm.place(model, store(), **QUICK, steps=0)
    assert model.model.layers[0].self_attn is attention and torch.equal(model(ids).logits, before)


def test_without_a_search_the_order_of_the_scan_decides():
    found = measured(steps=0)
    assert found.result["placed"] == {"full": [PLANTED]} and found.result["greedy"] == []


def test_an_anchorlm_model_is_measured_as_its_teacher():
    hybrid = convert(planted(), Plan((Reach("window", 4, 1),) * LAYERS)).eval()
    found = anchorlm.place(hybrid, store(), **QUICK, steps=0)
    assert found.layers == measured(steps=0).layers and hybrid.plan.layers[0].kind == "window"


def test_trials_can_be_recomputed_from_the_whole_model():
    found = measured(documents=2, steps=0)
    model = convert(planted(), Plan((Reach(),) * LAYERS)).eval()
    for trial in found.trials:
        sums = tokens = 0
        for piece in found_pieces(2):
            with torch.no_grad():
                out = model(piece[None], plan=Plan.from_dict(trial["plan"], LAYERS), labels=piece[None])
            sums, tokens = sums + float(out.loss) * (len(piece) - 1), tokens + len(piece) - 1
        assert trial["loss"]["all"]["value"] == pytest.approx(sums / tokens, abs=1e-5)


def found_pieces(count):
    from anchorlm.eval.ppl import cut

    return [torch.from_numpy(piece) for piece in cut(store(), LENGTH, count)]


def test_a_window_as_long_as_the_text_is_silent():
    model = convert(planted(), Plan((Reach(),) * LAYERS)).eval()
    bench = Bench(model, {}, Reach("window", LENGTH, 2), Parts(None))
    probe = text_probe(found_pieces(1)[0].numpy(), 8, LENGTH)
    trials = [Trial("teacher", (), bench.full, LAYERS), *(scan.restricted(bench, "layer", (i,)) for i in range(LAYERS))]
    outcomes = Lab(bench, [[probe]]).race(bench.full, trials)
    assert all(outcome.rows == outcomes["teacher"].rows for outcome in outcomes.values())


def test_an_interrupted_run_goes_on_and_ends_with_the_same_figures(tmp_path):
    whole = measured(out=tmp_path / "a" / "plan.yaml", report=tmp_path / "a.html")
    seen = []

    def stop(stage, done, total):
        seen.append(done)
        if len(seen) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(out=tmp_path / "b" / "plan.yaml", progress=stop)
    assert not (tmp_path / "b" / "plan.json").exists()
    again = measured(out=tmp_path / "b" / "plan.yaml")
    assert timeless(again.result) == timeless(whole.result)
    spent = [result["environment"]["measured_now"] for result in (whole.result, again.result)]
    assert spent[1] == spent[0] - 9
    stored = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert timeless(stored) == timeless(whole.result)
    assert (tmp_path / "a" / "plan.yaml").read_text() == (tmp_path / "b" / "plan.yaml").read_text()


def test_other_settings_are_measured_anew(tmp_path):
    measured(out=tmp_path / "plan.yaml", steps=0)
    other = measured(out=tmp_path / "plan.yaml", steps=0, window=9)
    assert other.result["environment"]["measured_now"] > 0
    same = measured(out=tmp_path / "plan.yaml", steps=0, window=9)
    assert same.result["environment"]["measured_now"] == 0


def test_the_plan_loads_and_the_page_stands_alone(tmp_path):
    found = measured(
        out=tmp_path / "plan.yaml", report=tmp_path / "page.html", keep="mixed", budget="60KB", oracle=True
    )
    plan = load_plan(tmp_path / "plan.yaml", ModelShape.from_config(planted().config))
    assert plan == found.plan and found.size <= 60_000
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2 and not re.search(r"(?:src|href)=[\"']?http", page)
    assert '<td class="n">2</td><td class="n">100.0 %' in page
    best = max(found.layers, key=lambda row: row["gain_oracle"]["value"])
    assert best["layer"] == PLANTED and best["gain_oracle"]["nats_per_megabyte"] > 0


def test_needles_are_measured_beside_the_text():
    found = measured(needles=True, tokenizer=char_tokenizer(), context=160, documents=2, steps=1)
    assert found.result["teacher"]["needle"]["targets"] == 14 and found.result["teacher"]["exact"]["targets"] == 2
    assert {"all", "needle", "exact"} <= set(found.trials[-1]["loss"])


def test_slots_at_the_measured_layers():
    found = measured(keep="slots", steps=0)
    assert [slot.read for slot in found.plan.slots.values()] == [(PLANTED,)]
    assert any("after training" in note for note in found.result["notes"])


def test_slots_of_exact_tokens_go_where_the_oracle_gains():
    found = measured(keep="slots", rule="kept", kept=6, steps=0)
    slot = found.plan.slots[f"l{PLANTED}"]
    assert slot.rule_options.tokens == 6 and slot.read == (PLANTED,) and len(found.plan.slots) == 1
    joint = next(point for point in found.result["pareto"] if point["series"] == "6 kept tokens (oracle)")
    assert joint["bytes"] == found.size and joint["layers"] == [PLANTED]
    assert joint["loss"]["all"]["value"] < found.result["window"]["all"]["value"]


def test_exact_tokens_are_divided_over_layers_by_what_each_way_gives():
    """Every way that the budget holds is measured; what only the planted layer needs goes to it, or most of it."""
    found = measured(keep="slots", rule="kept", steps=0)
    ways = [trial for trial in found.result["trials"] if isinstance(trial["kept"], list)]
    assert {trial["stage"] for trial in ways} >= {"first", "even", "stepped", "steep"}
    assert all(len(trial["kept"]) == len(trial["layers"]) for trial in ways)
    points = {(point["series"], *point["layers"]): point for point in found.result["pareto"]}
    for trial in ways:
        counts = sorted(set(trial["kept"]), reverse=True)
        series = f"{', '.join(map(str, counts[:-1]))}{' and ' * (len(counts) > 1)}{counts[-1]} kept tokens (oracle)"
        assert points[series, *trial["layers"]]["bytes"] <= 100_000
    tokens = {slot.write: slot.rule_options.tokens for slot in found.plan.slots.values()}
    assert max(tokens, key=tokens.get) == PLANTED and found.size <= 100_000


def test_exact_tokens_are_divided_by_head_where_heads_were_measured():
    """Both heads of the planted layer retrieve; where one alone did, it would have most of the tokens."""
    found = measured(keep="slots", rule="kept", kept=6, steps=0, heads=True)
    tokens = {slot.heads: slot.rule_options.tokens for slot in found.plan.slots.values()}
    assert {slot.write for slot in found.plan.slots.values()} == {PLANTED} and found.size >= 0
    assert tokens == {"kv": 6} or max(tokens.values()) == 4 * min(tokens.values())


def test_single_heads_are_measured_placed_and_measured_together():
    """With both heads of the planted layer the plan is the one that keeps the layer; with one, half of its bytes."""
    whole = measured(keep="heads", steps=0)
    layer = measured(steps=0)
    assert whole.plan == layer.plan and whole.size == layer.size
    assert sorted(whole.result["placed"]["heads"]) == [(PLANTED, 0), (PLANTED, 1)]
    best = whole.result["heads"][0]["head"]
    half = measured(keep="heads", steps=0, budget=layer.size // 2)
    assert half.size == layer.size // 2
    window = Reach("window", 8, 2)
    assert half.plan.layers[PLANTED] == Reach("window", 8, 2, heads=((best, Reach()),))
    assert {reach for i, reach in enumerate(half.plan.layers) if i != PLANTED} == {window}
    for found, size in ((whole, layer.size), (half, half.size)):
        point = next(p for p in found.result["pareto"] if p["series"] == "full attention in single heads")
        assert point["bytes"] == size == found.size and point["layers"] == [PLANTED]
    assert point["loss"]["all"]["value"] < half.result["window"]["all"]["value"]


def test_a_head_of_the_scan_is_the_plan_that_it_says():
    """A head that the output projection does not listen to may be windowed without any change."""
    model = planted()
    model.model.layers[PLANTED].self_attn.o_proj.weight.data[:, 16:] = 0  # the query heads of KV head 1
    found = anchorlm.place(model, store(), **QUICK, keep="heads", steps=0)
    costs = {row["head"]: row["change"]["all"] for row in found.result["heads"]}
    assert costs[1]["value"] == 0.0 and costs[0]["interval"][0] > 0
    assert found.result["placed"] == {"heads": [(PLANTED, 0)]}
    both = anchorlm.place(model, store(), **QUICK, keep="heads,slots", steps=0)
    assert both.result["placed"] == {"heads": [(PLANTED, 0)], "swiglu-ttt": [PLANTED]}
    assert both.plan.layers == found.plan.layers and both.plan.reads(PLANTED) == [f"l{PLANTED}"]


def test_named_layers_have_their_heads_measured_whether_they_matter_or_not():
    found = measured(heads=True, steps=0, layers=f"0,{PLANTED}", documents=2)
    assert sorted((row["layer"], row["head"]) for row in found.result["heads"]) == [
        (layer, head) for layer in (0, PLANTED) for head in (0, 1)
    ]
    assert any("--keep heads" in note for note in found.result["notes"])


def test_a_harmless_window_is_said():
    with pytest.raises(UserError, match="no layer needs memory"):
        measured(window=LENGTH - 3)


@pytest.mark.parametrize(
    "options, line",
    [
        ({"window": LENGTH}, "below --context, 96 tokens"),
        ({"window": 0}, "--window is 0"),
        ({"layers": "1,40"}, "the model has layers 0 to 3"),
        ({"layers": "x"}, "--layers names 'x'"),
        ({"keep": "slot"}, "did you mean 'slots'"),
        ({"keep": "heads,slot"}, "keep 'slot' is unknown; did you mean 'slots'"),
        ({"keep": "full,full"}, "--keep 'full,full' names a kind twice"),
        ({"keep": "slots,heads"}, "has slots before another kind"),
        ({"keep": "heads", "budget": "1KB"}, "the smallest state, full in one KV head, takes"),
        ({"rule": "swiglu"}, "swiglu-ttt"),
        ({"budget": "lots"}, "--budget 'lots' is not a size"),
        ({"budget": "2,5MB"}, "--budget '2,5MB' is not a size"),
        ({"budget": "1KB"}, "the smallest state, full in one layer, takes"),
        ({"context": 4096}, "positions up to 512"),
        ({"documents": 1}, "--documents is 1"),
        ({"context": 9.5}, "--context is 9.5"),
        ({"documnts": 3}, "did you mean 'documents'?"),
        ({"context": 300}, "--data is too short for a scan"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(options, line):
    with pytest.raises(UserError, match=re.escape(line)):
        measured(**options, progress=lambda *_: pytest.fail("measured something"))


def test_a_damaged_part_is_measured_again(tmp_path):
    first = measured(out=tmp_path / "plan.yaml", steps=0)
    part = next((tmp_path / "plan.parts").glob("*.json"))
    part.write_text("{")
    again = measured(out=tmp_path / "plan.yaml", steps=0)
    assert timeless(again.result) == timeless(first.result) and again.result["environment"]["measured_now"] == 1
    shutil.rmtree(tmp_path / "plan.parts")
