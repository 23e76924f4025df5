"""A silent branch costs exactly nothing, an open one what the whole model loses without it; controls and pairs."""

import numpy as np
import pytest
import torch

from anchorlm.analyze import run_analysis
from anchorlm.analyze.explain.knocks import Intact, knocks, measured
from anchorlm.analyze.probes import text_probe
from anchorlm.core import UserError
from anchorlm.data import Document, TokenStore
from anchorlm.data.crossing import distance_bins, reuse_distance
from anchorlm.eval.scoring import token_nll
from builders import hybrid, tokens
from explained import kept_hybrid, plan, small_hybrid, text_store
from small import char_tokenizer

LENGTH, WINDOW = 60, 6


def probe(seed=3):
    ids = tokens(1, LENGTH, seed)[0].numpy()
    ids[30:] = ids[:30]  # every pair comes again from beyond the window
    return text_probe(ids, WINDOW, LENGTH)


def found(model, control=True):
    whole, chosen = Intact(model, probe()), knocks(model.plan, [0, 1, 2, 3])
    return whole.sums(), {(k.branch, k.layer): measured(whole, k, control, 0) for k in chosen}


def test_a_silent_branch_costs_exactly_nothing():
    model = hybrid(plan=plan(), dtype=torch.float32, shaken=False)  # fresh gates are zero
    intact, rows = found(model)
    memory = {key: row for key, row in rows.items() if key[0] != "window"}
    assert sorted(memory) == [("memory", layer) for layer in range(4)] + [("slot", 1)]
    assert all(row["without"] == intact and row["noise"] in (intact, None) for row in memory.values())
    assert all(row["without"] != intact and row["noise"] != intact for k, row in rows.items() if k[0] == "window")


@pytest.mark.parametrize("make", [lambda: hybrid(plan=plan(), dtype=torch.float32), kept_hybrid])
def test_an_open_branch_costs_what_the_whole_model_loses(make):
    model = make()
    intact, rows = found(model)
    ids = torch.from_numpy(probe().ids)[None]
    assert intact["all"][0] == pytest.approx(float(token_nll(model, ids).double().sum()), rel=1e-5)
    for knock in knocks(model.plan, list(range(4))):
        row = rows[knock.branch, knock.layer]
        assert row["without"] != intact
        assert (row["noise"] is None) == (knock.branch == "slot")
        if not knock.unseen:
            with torch.inference_mode():
                logits = model(ids, plan=knock.plan).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
            assert row["without"]["all"][0] == pytest.approx(float(loss), rel=1e-5)


def test_noise_has_the_norm_of_what_was_removed():
    model = hybrid(plan=plan(), dtype=torch.float32)
    whole = Intact(model, probe())
    window = next(k for k in knocks(model.plan, [2]) if k.branch == "window")
    _, norms = whole.without(window)
    assert norms.shape == (LENGTH,) and bool((norms > 0).all())
    calm, again, loud = (whole.with_noise(2, norms * times, 0) for times in (0, 1, 1))
    assert calm == whole.sums() and again == loud and again != calm


def test_results_hold_every_layer_and_distance_and_go_on(tmp_path):
    model, store = small_hybrid(), text_store()
    told = []

    def run():
        given = {"context": 64, "documents": 3, "recall": 0, "layers": "0-2"}
        return run_analysis(
            model, char_tokenizer(), "knockout", store, out=tmp_path, progress=lambda *a: told.append(a), **given
        )["knockout"]

    first = run()
    assert first["kind"] == "knockout" and first["n"] == 3 and first["seed"] == 0 and first["data"]["hash"]
    assert first["bins"] == list(distance_bins(8, 64)) and list(first["texts"]) == ["text"]
    rows = first["texts"]["text"]["rows"]
    assert [(r["branch"], r["layer"]) for r in rows] == [
        ("memory", 0), ("memory", 1), ("memory", 2), ("slot", 1), ("window", 0), ("window", 1), ("window", 2)
    ]  # fmt: skip
    for row in rows:
        change = row["change"]["all"]
        assert change["targets"] == 3 * 63 and change["interval"][0] <= change["value"] <= change["interval"][1]
        far = first["bins"][1]
        assert row["over_near"][far]["value"] == pytest.approx(
            row["change"][far]["value"] - row["change"][first["bins"][0]]["value"]
        )
    assert told[-1] == ("knockout", 21, 21) and (tmp_path / "knockout.json").is_file()
    second = run()
    assert first["texts"] == second["texts"]


def test_recall_texts_have_a_question_for_each_distance():
    from anchorlm.analyze.explain.knockout import recall_probe
    from anchorlm.data.recall import RecallSource

    store = TokenStore.from_documents([Document("a", "The ship lay still. Nobody spoke. " * 90)], char_tokenizer())
    bins = distance_bins(400, 2000)
    made = recall_probe(RecallSource(store, char_tokenizer(), 2000), bins, np.random.default_rng(0))
    assert set(made.groups) == {"all", *bins} and all(made.groups[name].sum() > 0 for name in bins)
    assert sum(made.groups[name].sum() for name in bins) == len(made.targets) == made.groups["all"].sum()
    assert reuse_distance(made.ids).max() > 0


def test_mistakes():
    model, store = small_hybrid(), text_store()

    def told(what, data=store, **options):
        with pytest.raises(UserError) as error:
            run_analysis(model, char_tokenizer(), what, data, **{"context": 64} | options)
        return str(error.value)

    assert "analysis 'knokout' is unknown; did you mean 'knockout'?" in told("knokout")
    assert told("").startswith("no analysis named; allowed: ablation, choosers, cost")
    assert "did you mean 'context'" in told("knockout", contxt=3)
    assert told("knockout", context=9) == "--context is 9; a target beyond the window of 8 needs at least 10 tokens"
    assert "context 900 needs 1,800, as 2 pieces of 900" in told("similarity", context=900)
    assert told("similarity", ()) == "similarity needs --data: a text file or a folder of them"
    assert told("knockout", layers="9").endswith("the model has layers 0 to 3")
    assert told("similarity", layers="1") == "analyze option layers has no meaning for similarity"
    assert told("cost") == "--data is given, but no analysis that was asked for reads text; leave it out"
    assert told("ablation", windows=(0,)) == "analyze option windows is [0]; give whole numbers of at least 1"
