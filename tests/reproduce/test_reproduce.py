"""Items on a tiny base: trained once, shared, taken up again; claims, groups and bytes against known answers."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from anchorlm.cli import __main__ as program
from anchorlm.core import UserError
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from anchorlm.reproduce import (
    ITEMS,
    branches,
    claims,
    costs,
    hybrid,
    load_scale,
    outline,
    page,
    reproduce,
    shapes,
    table1,
    table2,
    table4,
)
from anchorlm.reproduce.lab import losses, mean_documents
from anchorlm.reproduce.scale import fixed_rows, packaged
from anchorlm.results import Job, run
from anchorlm.train.sinks import read_metrics
from small import char_tokenizer, tiny_llama

TEXT = "A quiet morning. The boats went out. Nobody spoke of the storm, and {} gulls sat on the wall. "
SCALE = {
    "window": 8, "sinks": 2, "context": 64, "limit": 4, "measured": [1], "draws": 2,
    "training": {"set": {"data.length": 32, "stage1.steps": 2, "stage1.warmup": 0, "stage2.steps": 2}},
    "tables": {
        "figure3": {"sinks": 0, "training": {"set": {"stage2.steps": 0, "eval_every": 1, "eval_batches": 2}}},
        "slots": {"training": {"set": {"data.accumulate": 1, "stage1.steps": 1, "stage2.steps": 1, "eval_every": 0}}},
    },
    "measures": {
        "similarity": {"context": 64, "documents": 2}, "readmaps": {"context": 64, "documents": 2},
        "knockout": {"context": 64, "documents": 2, "recall": 0, "control": False, "layers": "0,2"},
        "ar": {"lengths": [200], "ar": {"samples": 2, "queries": 4}}, "niah": {"lengths": [200, 300], "limit": 2},
        "ruler": {"lengths": [560], "ruler": {"tasks": ["niah_single_1"], "samples": 1, "answer_tokens": 8}},
        "timing": {"lengths": [16, 32], "rows": 2, "new_tokens": 2},
        "mad": {
            "models": ["transformer", "anchor-f"], "tasks": ["compression"], "seeds": 1,
            "set": {"model.hidden": 8, "model.layers": 2, "model.heads": 2, "model.kv_heads": 2, "training.steps": 1,
                    "training.batch": 2, "test": 2},
        },
    },
}  # fmt: skip
VERDICTS = {claims.AGREES, claims.NOT, claims.UNCLEAR, claims.NOT_COMPARABLE}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    tiny_llama(layers=4, max_positions=2048).save_pretrained(home / "base")
    char_tokenizer().save_pretrained(home / "base")
    for name in ("train", "test"):
        (home / f"{name}.txt").write_text("".join(TEXT.format(f"{name} {n}") for n in range(40)))
    (home / "tiny.yaml").write_text(yaml.safe_dump(SCALE | {"base": str(home / "base")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORLM_CACHE", str(home / "cache"))
        yield home


def job(home, out, **values):
    given = {"train": (str(home / "train.txt"),), "dtype": "float32"} | values
    return Job((str(home / "test.txt"),), out, **given)


def silent(text):
    pass


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    """(folder, result, said lines) of all items."""
    out, said = tmp_path_factory.mktemp("out"), []
    return out, reproduce("all", load_scale(home / "tiny.yaml"), job(home, out), say=said.append), said


def by_name(result):
    return {item["name"]: item for item in result["items"]}


def test_every_item_is_measured_and_on_the_page(done):
    out, result, said = done
    found = by_name(result)
    assert list(found) == list(ITEMS) and all(found[name]["measured"] for name in found)
    for name in found:
        assert found[name]["claims"] and found[name]["tables"]
        assert {row["verdict"] for row in found[name]["claims"]} <= VERDICTS
        for table in found[name]["tables"]:
            assert all(len(row) == len(table["heads"]) for row in table["rows"])
    assert json.loads((out / "reproduce.json").read_text()) == json.loads(json.dumps(result))
    text = (out / "reproduce.md").read_text()
    assert "| anchors' update off | 487.56 | 163.6 |" in text
    assert "## Not measured" not in text
    trained = [line for line in said if line.endswith(": training")]
    assert len(trained) == len(set(trained)) == 4 + 9, "items share their rows"
    assert sum(page.verdicts(result).values()) == sum(len(item["claims"]) for item in found.values())


def test_the_html_is_self_contained_and_holds_every_figure(done):
    text = (done[0] / "reproduce.html").read_text()
    drawn = sum(len(item["figures"]) for item in done[1]["items"])
    assert text.count("<svg") == drawn >= 16
    assert "held-out perplexity" in text and "change of the loss, nats a token" in text
    assert "http" not in text.replace("http-equiv", "")


def test_curves_begin_before_the_first_step_and_hold_every_evaluation(done):
    out, result, _ = done
    figure = by_name(result)["figure3"]["figures"][0]
    start = {name: points[0] for name, points in figure["curves"].items()}
    assert start["mse-free"] == start["ce"] == start["both"] and start["mse"]["perplexity"] == start["ce"]["perplexity"]
    assert start["mse"]["mse"] != start["ce"]["mse"]  # fed the teacher's hidden states, no error reaches the next layer
    for name, points in figure["curves"].items():
        records = [r for r in read_metrics(out / "figure3" / "rows" / name / "metrics.jsonl") if "eval" in r]
        assert [point["step"] for point in points] == [0, 1, 2]
        assert [p["perplexity"] for p in points[1:]] == [math.exp(r["eval"]["ce"]) for r in records]
        assert [p["mse"] for p in points[1:]] == [r["eval"]["mse"] for r in records]


def test_switching_nothing_off_is_the_trained_row(done):
    """Table 1's first row is scored through a view of the model, Table 2's through the model itself."""
    found = by_name(done[1])
    first = {row[0]: row for row in found["table1"]["tables"][0]["rows"]}
    second = {row[0]: row for row in found["table2"]["tables"][0]["rows"]}
    assert first[table1.INTACT][4] == second["Anchor-F, a private state in every layer"][2]
    assert first[table1.INTACT][2] == "4" and first[table1.ALL][2] == "0" and first[table1.ALL][3] == "0.00 MB"
    assert [first[name][2] for name in (table1.BOUNDARY, table1.OTHERS)] == ["2", "2"]


def test_what_was_measured_is_taken_and_a_changed_text_is_not(home, done, monkeypatch):
    out, result, _ = done
    scale, said = load_scale(home / "tiny.yaml"), []
    monkeypatch.setattr(run, "train", lambda *a, **k: pytest.fail("trained again"))
    again = reproduce(["table1", "figure3"], scale, job(home, out), say=said.append)
    assert again["items"] == result["items"] and said == ["table1: measured before", "figure3: measured before"]
    shown = reproduce([], scale, Job((), out, measure=False), say=silent)
    assert shown["items"] == result["items"]
    with pytest.raises(UserError, match=r"row '.*': .*data.texts"):
        reproduce("table1", scale, job(home, out, train=(str(home / "test.txt"),)), say=silent)


def test_a_damaged_item_is_measured_again(home, done, tmp_path):
    """Whatever is missing of what was kept, it counts as not measured and the page is written without it."""
    whole = json.loads((done[0] / "figure5.json").read_text())
    (tmp_path / "figure5.json").write_text(json.dumps(whole))
    scale, shown = load_scale(home / "tiny.yaml"), job(home, tmp_path, measure=False)
    assert by_name(reproduce([], scale, shown, say=silent))["figure5"]["measured"]
    for part in ("kind", "tables", "claims", "figures", "notes"):
        for value in (None, 5, [5], [{}], ...):
            damaged = {name: one for name, one in whole.items() if name != part}
            damaged |= {} if value is ... else {part: value}
            (tmp_path / "figure5.json").write_text(json.dumps(damaged))
            assert not by_name(reproduce([], scale, shown, say=silent))["figure5"]["measured"], (part, value)
    said = []
    assert by_name(reproduce("figure5", scale, job(home, tmp_path), say=said.append))["figure5"]["measured"]
    assert said == ["figure5: State and coverage"]


def test_a_stopped_item_goes_on(home, tmp_path, monkeypatch):
    scale, real, said = load_scale(home / "tiny.yaml"), run.train, []

    def stopped(model, tokenizer, recipe, data, folder, **options):
        if folder.name == "ce":
            raise KeyboardInterrupt
        return real(model, tokenizer, recipe, data, folder, **options)

    monkeypatch.setattr(run, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce("figure3", scale, job(home, tmp_path / "out"), say=silent)
    monkeypatch.setattr(run, "train", real)
    part = by_name(reproduce("figure3", scale, job(home, tmp_path / "out", train_rows=False), say=silent))["figure3"]
    assert list(part["figures"][0]["curves"]) == ["mse", "mse-free"] and len(part["claims"]) == 3
    assert part["notes"][-1] == "Rows that are still to come: `ce` (not trained), `both` (not trained)."
    with pytest.raises(UserError, match="rows that are not trained: anchor-f; leave out --no-train"):
        reproduce("table1", scale, job(home, tmp_path / "out", train_rows=False), say=silent)
    left = reproduce(["table1", "table2", "figure3", "figure5"], scale, job(home, tmp_path / "out", train_rows=False),
                     say=said.append)  # fmt: skip
    assert [name for name, item in by_name(left).items() if item["measured"]] == ["figure3", "figure5"]
    assert list(left["skipped"]) == ["table1", "table2"]
    reason = "rows that are not trained: anchor-f; leave out --no-train"
    assert f"table1: left out; {reason}" in said and f": {reason}" in (tmp_path / "out" / "reproduce.md").read_text()
    said.clear()
    found = reproduce("figure3", scale, job(home, tmp_path / "out"), say=said.append)
    assert by_name(found)["figure3"]["measured"] and not by_name(found)["table1"]["measured"]
    assert [line for line in said if line.endswith("training")] == ["ce: training", "both: training"]


def estimate(value, low, high):
    return {"value": value, "interval": [low, high]}


def test_a_verdict_needs_the_whole_interval():
    assert claims.above(estimate(1, 0.5, 2)) == claims.AGREES and claims.below(estimate(1, 0.5, 2)) == claims.NOT
    assert claims.above(estimate(-1, -2, -0.5)) == claims.NOT and claims.below(estimate(-1, -2, -0.5)) == claims.AGREES
    assert claims.above(estimate(1, -1, 2)) == claims.below(estimate(1, -1, 2)) == claims.UNCLEAR
    assert claims.above(estimate(0.8, 0.7, 0.9), 0.75) == claims.UNCLEAR
    assert claims.above(None) == claims.NOT_COMPARABLE
    assert claims.above({"value": 1.0, "interval": None}) == claims.AGREES
    assert claims.together(claims.AGREES, claims.NOT, claims.UNCLEAR) == claims.NOT
    assert claims.claim("a", "b", "c", claims.NOT, {claims.NOT: "because"})["why"] == "because"


def pieces(*totals):
    return [{"all": [total, 10], "cross_window": [total / 2, 4]} for total in totals]


def test_rises_are_paired_by_piece():
    rise = losses(pieces(30, 50, 41), pieces(20, 40, 30), 0)
    assert rise["all"]["value"] == pytest.approx(31 / 30) and rise["all"]["interval"][0] >= 1
    assert rise["cross_window"]["value"] == pytest.approx(31 / 2 / 12)
    mean = mean_documents([pieces(10, 20), pieces(30, 60)])
    assert [piece["all"] for piece in mean] == [[20, 10], [40, 10]]


def test_the_share_of_the_gain_that_is_kept():
    rows = {"swa-lora": pieces(50, 60), "anchor-private": pieces(40, 40), "anchor": pieces(42, 43)}
    kept = table2.kept_share(rows, "anchor", "all", 0)
    assert kept["value"] == pytest.approx(25 / 30)
    low, high = kept["interval"]
    assert low == pytest.approx(0.8) and high == pytest.approx(0.85)
    assert table2.kept_share({**rows, "anchor-private": pieces(60, 60)}, "anchor", "all", 0) is None


def test_bytes_of_the_papers_model():
    wanted = {
        "anchor-f": 201_326_592, "anchor-i": 176_160_768, "anchor": 12_582_912,
        "anchor-private": 37_748_736, "anchor-hybrid": 50_331_648,
    }  # fmt: skip
    assert {name: table2.paper_bytes(name) for name in wanted} == wanted
    assert table2._bytes_claim()["verdict"] == claims.AGREES


def test_coverage_counts_what_a_token_sees():
    """Against a walk over the text: the last token sees its window, and what was committed before its chunk."""
    for length, window, chunk in ((32768, 512, 512), (50, 8, 8), (51, 8, 6), (7, 8, 8), (17, 4, 8)):
        last = length - 1
        near = {t for t in range(length) if last - t < window}
        far = {t for t in range(length) if t < last // chunk * chunk}
        neither = set(range(length)) - near - far
        assert shapes.coverage(length, window, chunk) == (len(near), len(far), len(neither))


def test_the_outline_names_each_row_once_and_what_is_trained(home, done, tmp_path, capsys):
    scale = load_scale(home / "tiny.yaml")
    found = outline("all", scale, job(home, tmp_path / "none"))
    assert found["items"] == list(ITEMS) and found["mad"] == {"trainings": 2, "steps": 1}
    assert len(found["rows"]) == 4 + 9 and not any(row["trained"] for row in found["rows"])
    assert found["tokens"] == 32 * (4 * 2 + 6 * 2 + 3 * 1) and found["seconds"] > 0
    after = outline("all", scale, job(home, done[0]))
    assert all(row["trained"] for row in after["rows"]) and after["tokens"] == after["seconds"] == 0
    said = [line.removesuffix(": training") for line in done[2] if line.endswith(": training")]
    assert sorted(said) == sorted(row["row"] for row in found["rows"]), "items train what they name"
    given = ["--scale", str(home / "tiny.yaml"), "--dry-run", "-o", str(tmp_path / "none")]
    assert program.run(["reproduce", "table2", "figure9", *given]) == 0
    shown = capsys.readouterr().out
    assert "anchor-no-map" in shown and "tokens, about 0:0" in shown and "MAD" not in shown
    assert not (tmp_path / "none").exists()


def measured(*values):
    return {"value": sum(values) / len(values), "samples": [
        {"id": str(n), "score": value} for n, value in enumerate(values)]}  # fmt: skip


def test_a_hybrid_beside_its_teacher():
    """Ten questions each: near the teacher, clearly below it, and a teacher that has nothing to lose."""
    lab = SimpleNamespace(scale=SimpleNamespace(seed=0))
    rows = {"teacher": measured(*[1] * 10), "swa-lora": measured(*[0] * 10)}

    def verdict(other, *values):
        found = rows | {"anchor-hybrid": measured(*values)}
        return hybrid._claim(lab, "ruler", found, other, "")["verdict"]

    assert verdict("teacher", *[1] * 10) == claims.AGREES and verdict("swa-lora", *[1] * 10) == claims.AGREES
    assert verdict("teacher", *[0] * 10) == claims.NOT and verdict("swa-lora", *[0] * 10) == claims.UNCLEAR
    assert verdict("teacher", *[1] * 9, 0) == claims.UNCLEAR
    rows["teacher"] = measured(*[0] * 10)
    assert verdict("teacher", *[0] * 10) == claims.NOT_COMPARABLE


def test_intervals_that_are_apart():
    high, low, wide = estimate(0.9, 0.8, 1.0), estimate(0.5, 0.4, 0.6), estimate(0.7, 0.5, 0.9)
    assert claims.apart(high, low) == claims.AGREES and claims.apart(low, high) == claims.NOT
    assert claims.apart(high, wide) == claims.UNCLEAR and claims.apart(None, low) == claims.NOT_COMPARABLE
    assert claims.within(estimate(0.1, -0.1, 0.15), 0.2) == claims.AGREES
    assert claims.within(estimate(-0.5, -0.6, -0.4), 0.2) == claims.NOT
    assert claims.within(estimate(0.2, 0.1, 0.3), 0.2) == claims.UNCLEAR and claims.within(None, 1) != claims.AGREES


def test_the_gap_of_layers_and_the_rise_beyond_the_window():
    rise = {"near": {"value": 9.0, "targets": 50}, "a": {"value": 1.0, "targets": 1}, "b": {"value": 3.0, "targets": 3}}
    assert branches.far({"change": rise}, ["a", "b", "c"]) == pytest.approx(2.5)
    assert branches.far({"change": {"near": rise["near"]}}, ["a"]) is None
    found = branches.gap([1.0, 1.2], [0.1, 0.0, 0.2], 0)
    assert found["value"] == pytest.approx(1.0) and 0.7 < found["interval"][0] < 1.0 < found["interval"][1] < 1.3
    assert branches.gap([1.0], [0.5], 0) == {"value": 0.5, "interval": None} and branches.gap([], [1.0], 0) is None


def test_columns_of_mad_are_compared_seed_by_seed():
    def verdict(first, second):
        pair = [values and {"mean": np.mean(values), "deviation": None, "values": values} for values in (first, second)]
        return table4._higher(*pair, "", "")["verdict"]

    assert verdict([0.9, 0.8], [0.7, 0.7]) == claims.AGREES and verdict([0.5, 0.6], [0.7, 0.7]) == claims.NOT
    assert verdict([0.9, 0.6], [0.7, 0.7]) == claims.UNCLEAR and verdict(None, [0.7]) == claims.NOT_COMPARABLE


def test_time_is_that_of_reading_and_writing():
    found = {"teacher": {10: 100.0, 20: 300.0}, "anchor-f": {10: 90.0, 20: 120.0}, "anchor": {10: 50.0, 20: 60.0}}
    first, second, third = costs._time_claims(found)
    assert first["ours"].startswith("20.00 against 1.00 s") and second["ours"] == "5.00 times at 20"
    assert third["ours"] == "2.00 times at 20" and {c["verdict"] for c in (first, second, third)} == {claims.AGREES}
    read = []
    model = tiny_llama()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    assert costs.end_to_end(model, 20, 3, 4) > 0 and read == [(3, 20), (3, 1), (3, 1), (3, 1)]


def test_items_of_shapes_need_no_text(tmp_path, capsys):
    assert program.run(["reproduce", "figure5", "figure7", "-o", str(tmp_path / "o")]) == 0
    shown = capsys.readouterr().out
    assert "| anchor | 2 | 12,582,912 | 16.0 | 0 |" in shown and "8 states in 32 layers, 50,331,648 bytes" in shown
    assert "disagrees" not in shown


def test_groups_of_layers():
    shape, scale = ModelShape(30, 9, 3, 64, 576, 49152, 8192), load_scale("small")
    groups = table1.off_groups(scale, shape)
    boundary = (0, 1, 26, 27, 28, 29)
    assert groups[table1.BOUNDARY] == boundary and groups[table1.ALL] == tuple(range(30))
    assert sorted(groups[table1.OTHERS] + boundary) == list(range(30))
    assert sorted(groups[table1.UNMEASURED] + groups[table1.MEASURED]) == list(range(30))
    drawn = [layers for name, layers in groups.items() if name.startswith("random")]
    assert len(drawn) == scale.draws == len(set(drawn))
    assert all(len(layers) == len(set(layers)) == 6 and not set(layers) & set(boundary) for layers in drawn)
    assert groups == table1.off_groups(scale, shape)
    plan = table1.without(build("anchor-f", shape, window=128), boundary)
    assert {slot.write for slot in plan.slots.values()} == set(range(30)) - set(boundary)
    with pytest.raises(UserError, match=r"measured is \[30\]; smollm2-135m has layers 0 to 29"):
        table1.off_groups(scale.model_copy(update={"measured": (30,)}), shape)


@pytest.mark.parametrize("name", ["small", "full"])
def test_packaged_scales_make_every_table(name):
    scale = load_scale(name)
    figure, slots = scale.table("figure3"), scale.table("slots")
    recipes = {row.name: figure.recipe(row) for row in figure.rows if row.recipe}
    weights = {name: (r.stage1.w_mse, r.stage1.w_ce, r.stage1.mse_inputs) for name, r in recipes.items()}
    assert weights == {
        "mse": (1, 0, "teacher"), "mse-free": (1, 0, "student"), "ce": (0, 1, "student"), "both": (1, 1, "student"),
    }  # fmt: skip
    assert len({(r.stage1.steps, r.stage2.steps, r.seed, r.data.length) for r in recipes.values()}) == 1
    trained = {row.name: recipe for row in slots.rows if (recipe := slots.recipe(row))}
    assert len({(r.stage2.steps, r.stage2.lr, r.seed, r.data.length) for r in trained.values()}) == 1
    assert trained["swa-lora"].stage1.steps == 0 < trained["anchor"].stage1.steps == trained["anchor-f"].stage1.steps


def test_one_recipe_key_changes_every_trained_row():
    scale = load_scale("small", {"stage1.steps": 7, "stage2.lr": 0.25}, limit=3)
    slots = scale.table("slots")
    recipes = {row.name: recipe for row in slots.rows if (recipe := slots.recipe(row))}
    one_stage = ["swa-lora", "liger", "liger-hybrid"]
    assert {name: recipe.stage1.steps for name, recipe in recipes.items()} == dict.fromkeys(recipes, 7) | dict.fromkeys(
        one_stage, 0
    )
    assert fixed_rows("stage1.steps") == one_stage and fixed_rows("stage2.lr") == []
    assert {recipe.stage2.lr for recipe in recipes.values()} == {0.25} and slots.limit == 3


def test_the_papers_numbers_are_there_for_every_item():
    paper = yaml.safe_load(packaged("paper.yaml"))
    assert set(paper["items"]) == set(ITEMS) and "2611.04327" in paper["source"]
    for item in page.result({})["items"]:
        assert item["paper"]["caption"] and all(
            len(row) == len(item["paper"]["heads"]) for row in item["paper"]["rows"]
        )
    numbers = [row["perplexity"] for row in paper["items"]["table1"]["rows"]]
    assert numbers == [7.36, 10.19, 487.56, 10.01] and np.isclose(numbers[2] / numbers[1], 48, rtol=0.01)


MISTAKES = [
    (("figure33",), "'figure3'"),
    ((), "reproduce needs an item"),
    (("table5", "--scale", "{home}/measures.yaml"), "scale measures.ruler: eval option 'lenghts' is unknown"),
    (("figure3", "--scale", "smal"), "'small'"),
    (("figure3", "--set", "stage1=3"), "'stage1=3': stage1 is a group of settings; set one of"),
    (("figure3", "--set", "stage1.stepz=3"), "'steps'"),
    (("figure3", "--scale", "{home}/bad.yaml"), "'figure3'"),
    (("figure3", "--scale", "{home}/worse.yaml"), "'window'"),
    (("figure3", "--train", "{home}/none.txt"), "none.txt"),
    (("figure3", "--base", "{home}/nothing"), "nothing"),
    (("figure3", "--context", "90000", "--train", "{home}/train.txt"), "needs at least 90000"),
    (("figure3",), "give --train TEXT"),
    (("table1", "--scale", "{home}/far.yaml", "--train", "{home}/train.txt"), "has layers 0 to 3"),
]


@pytest.mark.parametrize("arguments, expected", MISTAKES, ids=[" ".join(a) or "none" for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_nothing_is_written(home, tmp_path, capsys, arguments, expected):
    base = {**SCALE, "base": str(home / "base")}
    (home / "bad.yaml").write_text(yaml.safe_dump({**base, "tables": {"figure33": {}}}))
    (home / "worse.yaml").write_text(yaml.safe_dump({**base, "windoww": 3}))
    measures = SCALE["measures"] | {"ruler": {"lenghts": [560]}}
    (home / "measures.yaml").write_text(yaml.safe_dump({**base, "measures": measures}))
    (home / "far.yaml").write_text(yaml.safe_dump({**base, "measured": [9]}))
    line = [argument.format(home=home) for argument in arguments]
    scale = [] if "--scale" in line else ["--scale", str(home / "tiny.yaml")]
    given = [*line, *scale, "--data", str(home / "test.txt"), "-o", str(tmp_path / "o")]
    assert program.run(["reproduce", *given]) == 2
    shown = capsys.readouterr().err.rstrip("\n")
    assert expected in shown and shown.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "o").exists()


def test_no_data_is_a_mistake(home, tmp_path, capsys):
    assert program.run(["reproduce", "all", "--scale", str(home / "tiny.yaml"), "-o", str(tmp_path / "o")]) == 2
    assert "table1 needs --data" in capsys.readouterr().err


def test_the_command_shows_the_page(home, done, capsys):
    assert program.run(["reproduce", "all", "--page", "--scale", str(home / "tiny.yaml"), "-o", str(done[0])]) == 0
    assert capsys.readouterr().out.startswith(f"# {page.TITLE}")
    assert program.run(["reproduce", "--page", "--json", "-o", str(done[0])]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "reproduction"
