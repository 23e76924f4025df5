"""What a comparison is made of, before anything is run: steps from tokens, rows, places, and every mistake."""

import pytest
import yaml

from anchorlm.cli import __main__ as program
from anchorlm.compare import Contest, check_methods, contest_table, known_layers, named_layers, parse_tokens
from anchorlm.compare.budget import LEAST_STEPS, fit
from anchorlm.core import UserError
from anchorlm.plan import ModelShape
from anchorlm.presets import PRESETS, build
from anchorlm.reach import Reach
from anchorlm.results.plans import placed, plan_from, row_plans
from anchorlm.settings import load_recipe, recipe_names

SHAPE = ModelShape(30, 9, 3, 64, 576, 49152, 8192)
LAYERS = (7, 8, 18, 20, 23, 24)


@pytest.mark.parametrize("text, tokens", [
    ("1M", 10**6), ("300K", 300_000), ("1.5m", 1_500_000), ("20000", 20_000), ("1_000", 1_000), (7, 7),
])  # fmt: skip
def test_tokens_are_read(text, tokens):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("name", [name for name in recipe_names() if name in PRESETS or name == "common"])
@pytest.mark.parametrize("tokens", [20_000, 300_000, 1_000_000])
def test_a_budget_is_used_but_for_a_last_part_of_a_step(name, tokens):
    recipe = load_recipe(name)
    found = fit(recipe, tokens, "row")
    step = found.row * found.accumulate
    assert tokens - step < sum(found.steps) * step <= tokens
    stages = [stage for stage in (recipe.stage1, recipe.stage2) if stage.steps]
    assert len(found.steps) == len(stages) and min(found.steps) >= 1
    shares = [stage.steps / sum(each.steps for each in stages) for stage in stages]
    for steps, share in zip(found.steps, shares, strict=True):
        assert abs(steps - share * sum(found.steps)) <= 1
    warmups = [value for key, value in found.sets.items() if key.endswith("warmup")]
    assert all(warmup <= stage.warmup for warmup, stage in zip(warmups, stages, strict=True))


def test_passes_are_kept_unless_too_few_steps_remain():
    recipe = load_recipe("lolcats")  # 8 passes of 1,024 tokens
    enough = LEAST_STEPS * 8 * 1024
    assert fit(recipe, enough, "row").accumulate == 8 and "passes" not in fit(recipe, enough, "row").text()
    fewer = fit(recipe, enough - 1, "row")
    assert fewer.accumulate == 4
    assert fewer.text().endswith(f"4 of its 8 passes each, or fewer than {LEAST_STEPS} would remain")
    assert fit(recipe, 2048, "row").steps == (1, 1)
    with pytest.raises(UserError, match="row: --tokens 2,047 is below 2,048, one step of 1,024 tokens in each of its"):
        fit(recipe, 2047, "row")


def test_every_method_gives_rows_that_can_be_built():
    methods = tuple(name for name in PRESETS if name not in ("full", "swa"))
    table = contest_table(Contest("smollm2-135m", methods, 10**6, seeds=(0, 3), layers=LAYERS))
    names = [row.name for row in table.rows if not row.repeats]
    assert set(row_plans(table, SHAPE)) == {row.name for row in table.rows}
    assert {f"{name}-common" for name in methods} | {f"{name}-measured" for name in methods} <= set(names)
    assert {row.repeats for row in table.rows if row.repeats} == {row.name for row in table.rows if row.recipe} - {
        row.name for row in table.rows if row.repeats
    }
    assert [row.set["seed"] for row in table.rows if row.name.startswith("liger-common")] == [0, 3]
    recipes = [table.recipe(row) for row in table.rows if row.name in table.alike[1]]
    assert len({recipe.model_dump_json() for recipe in recipes if recipe}) == 1


def test_single_slots_of_a_preset_may_differ():
    options = {"tokens": 37}
    more = {"l7": {"options": {"tokens": 144}}}
    plan = plan_from({"preset": "anchor-f", "rule": "kept", "options": options, "slots": more}, SHAPE, 128, 4)
    tokens = {name: slot.rule_options.tokens for name, slot in plan.slots.items()}
    assert tokens == {f"l{i}": 144 if i == 7 else 37 for i in range(SHAPE.layers)}
    with pytest.raises(UserError, match="slots.l99.write is missing"):
        plan_from({"preset": "anchor-f", "slots": {"l99": {"chunk": 8}}}, SHAPE, 128, 4)


def test_a_preset_in_places_is_that_of_a_model_of_so_many_layers():
    plan = plan_from({"preset": "anchor-hybrid", "place": [24, 7, 8, 18, 20, 23]}, SHAPE, 128, 4)
    assert {slot.read for slot in plan.slots.values()} == {(7, 8, 18), (23, 24)}
    assert [i for i, reach in enumerate(plan.layers) if reach.unlimited] == [20]
    assert plan.layers[0] == Reach("window", 128, 4)
    plan = plan_from({"preset": "lolcats", "place": [3, 9]}, SHAPE, 128, 4)
    assert {name: slot.write for name, slot in plan.slots.items()} == {"l3": 3, "l9": 9}
    assert plan.layers[3] == Reach("window", 128) != plan.layers[4]
    whole = build("anchor", SHAPE, window=128)
    assert placed(whole, range(30), Reach(), 30) == whole


@pytest.mark.parametrize("method", [name for name in PRESETS if name not in ("full", "swa")])
def test_the_page_says_what_stands_in_measured_layers(method):
    """Memory or full attention in each of them, as in a model of so many layers, and the window everywhere else."""
    table = contest_table(Contest("smollm2-135m", (method,), 10**6, layers=LAYERS))
    plan = row_plans(table, SHAPE)[f"{method}-measured"]
    apart = [i for i, reach in enumerate(plan.layers) if plan.reads(i) or reach.unlimited]
    assert apart == list(LAYERS) and {plan.layers[i] for i in range(30) if i not in LAYERS} == {Reach("window", 128, 4)}
    assert "a model of 6 layers put into layers 7, 8, 18, 20, 23, 24, of which a method that leaves layers at full " \
        "attention leaves some; all others have the control's window" in table.about[0]  # fmt: skip


@pytest.mark.parametrize("place", [[], [3, 3], [30], [-1], ["3"], 3, [True]])
def test_impossible_places_are_named(place):
    with pytest.raises(UserError, match=r"place is .*; give a list of different layers out of 0 to 29"):
        plan_from({"preset": "anchor", "place": place}, SHAPE, 128, 4)


def test_layers_are_named_or_those_of_a_plan(tmp_path):
    assert named_layers("7,8,18-20", SHAPE) == (7, 8, 18, 19, 20) and known_layers("smollm2-135m") == LAYERS
    assert known_layers("another") == ()
    plan = {
        "attention": {"kind": "window", "window": 64},
        "layers": {"5": {"kind": "full"}, "8": {"heads": {0: "full"}}},
        "slots": {"a": {"write": 2, "read": [2, 3], "chunk": 64}},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    assert named_layers(str(tmp_path / "plan.yaml"), SHAPE) == (2, 3, 5, 8)


def test_methods_by_default_are_those_that_exist():
    chosen = check_methods(())
    assert {"swa", "lolcats", "liger", "lizard", "anchor", "anchor-hybrid"} <= set(chosen) <= set(PRESETS)
    assert check_methods(["anchor", "anchor"]) == ("anchor",)


BAD = [
    (["--methods", "lolcat"], "method 'lolcat' is unknown; did you mean 'lolcats'?"),
    (["--methods", "full"], "method 'full' is unknown"),
    (["--tokens", "0"], "--tokens '0' is no number of tokens from 1 to"),
    (["--tokens", "1MM"], "--tokens '1MM'"),
    (["--tokens", "many"], "--tokens 'many'"),
    (["--tokens", "63"], "row 'teacher-common': --tokens 63 is below 64, one step of 64 tokens"),
    (["--tokens", "100"], "row 'lolcats': --tokens 100 is below 128"),
    (["--layers", "2"], "--layers names layers '2'; the model has layers 0 to 1"),
    (["--layers", "0-9"], "0 to 1"),
    (["--layers", "one"], "--layers names 'one'"),
    (["--layers", "none.yaml"], "plan 'none.yaml': no such file"),
    (["--seeds", "0,x"], "--seeds 'x'"),
    (["--lengths", "1k"], "--lengths '1k'"),
    (["--set", "stage2.steps=3"], "--set stage2.steps is not taken: it follows from --tokens"),
    (["--set", "seed=3"], "it follows from --seeds"),
    (["--set", "data.mix={recall: 0.2}"], "--set data.mix.recall is not taken: it follows from --mix"),
    (["--set", "data.lenght=32"], "'length'"),
    (["--mix", "recal=0.2"], "'recal'"),
    (["--rows", "lolcat"], "--rows names row 'lolcat'"),
    (["--train", "none.txt"], "none.txt does not exist"),
    (["--records", "none"], "--records none is no folder"),
    (["--recall", "2", "--context", "300"], "context is 300; a fact in each of 4 ranges"),
]


@pytest.mark.parametrize("more, expected", BAD, ids=[expected[:40] for _, expected in BAD])
def test_a_mistake_is_one_line_and_nothing_is_written(command, tmp_path, capsys, monkeypatch, more, expected):
    if "--context" not in more:
        monkeypatch.setattr("anchorlm.results.run.load_base", lambda *a, **k: pytest.fail("weights were read"))
    assert program.run(command(tmp_path / "o", *more)) == 2
    error = capsys.readouterr().err.strip()
    assert expected in error and "\n" not in error
    assert not (tmp_path / "o").exists()


def test_an_unknown_method_is_told_before_the_base(capsys):
    assert program.run(["compare", "no-such-base", "--methods", "lolcat", "--data", "none.txt"]) == 2
    assert "did you mean 'lolcats'?" in capsys.readouterr().err


def test_text_is_needed(home, capsys):
    assert program.run(["compare", str(home / "base"), "--methods", "swa", "--tokens", "1M"]) == 2
    assert "needs --data" in capsys.readouterr().err
