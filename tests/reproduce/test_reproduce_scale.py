"""Scales: the tables of rows that follow from them."""

import pytest

from anchorlm.reproduce import load_scale
from anchorlm.reproduce.scale import fixed_rows


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
