"""Recipes are read strictly: every mistake is one line that names the key."""

from typing import Any

import pytest
import yaml

from anchorlm.core import UserError
from anchorlm.settings import Recipe, Strict, checked, flatten, load_recipe, recipe_names


def test_packaged_recipe_lists_every_field():
    from importlib import resources

    text = (resources.files("anchorlm") / "recipes" / "anchor.yaml").read_text()
    assert flatten(yaml.safe_load(text)).keys() == flatten(Recipe().model_dump()).keys()
    assert "anchor" in recipe_names()


@pytest.mark.parametrize("name", recipe_names())
def test_packaged_recipes_are_read_and_have_their_name(name):
    assert load_recipe(name).name == name


def test_recipes_are_what_they_are_called():
    transfer, distill, lora = (load_recipe(name) for name in ("transfer", "distill", "lora"))
    assert (transfer.stage1.mse_inputs, transfer.stage1.w_ce, transfer.stage2.steps) == ("teacher", 0.0, 0)
    assert distill.stage1.w_kl and distill.stage2.w_kl > distill.stage2.w_ce
    assert (lora.stage1.steps, lora.stage2.train_memory) == (0, False)


def test_overrides_are_typed_and_later_ones_win():
    recipe = load_recipe("anchor", ["stage1.steps=400", "stage2.lora.rank=4", "stage1.steps=7", "stage1.lr=1e-3"])
    assert (recipe.stage1.steps, recipe.stage2.lora.rank, recipe.stage1.lr) == (7, 4, 1e-3)
    assert load_recipe("anchor", ["stage2.lora.targets=[q, v]"]).stage2.lora.targets == ("q", "v")


def test_a_file_may_leave_fields_at_their_defaults(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("stage1: {steps: 3}\n")
    assert load_recipe(path) == Recipe(stage1={"steps": 3})


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stage1.step=3", ["'stage1.step'", "did you mean 'steps'"]),
        ("stage2.lora.rnk=3", ["'stage2.lora.rnk'", "did you mean 'rank'"]),
        ("sede=1", ["'sede'", "did you mean 'seed'"]),
        ("stage1.steps=many", ["stage1.steps", "'many'"]),
        ("stage1.lr=-1", ["stage1.lr", "-1", "greater than 0"]),
        ("data.packing=pack", ["data.packing", "'pack'", "concatenate"]),
        ("stage1.steps", ["must look like"]),
        ("seed.x=3", ["seed is a single value"]),
        ("data.mix.recal=0.1", ["'data.mix.recal'", "did you mean 'recall'"]),
        ("stage1=3", ["stage1", "3"]),
    ],
)
def test_mistakes_name_the_key(override, words):
    with pytest.raises(UserError) as caught:
        load_recipe("anchor", [override])
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_recipe_and_damaged_file(tmp_path):
    with pytest.raises(UserError, match="did you mean 'anchor'"):
        load_recipe("anchr")
    path = tmp_path / "bad.yaml"
    path.write_text("a: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load_recipe(path)
    path.write_text("seed: 1\nseed: 2")
    with pytest.raises(UserError, match="bad.yaml is not valid YAML: key 'seed' stands twice"):
        load_recipe(path)
    path.write_text("- 1")
    with pytest.raises(UserError, match="keys and values"):
        load_recipe(path)


def test_an_unknown_key_inside_a_list_or_a_mapping_is_named():
    class Inner(Strict):
        steps: int = 1

    class Outer(Strict):
        several: tuple[Inner, ...] = ()
        named: dict[str, Inner] = {}

    for values in ({"several": [{"stps": 1}]}, {"named": {"a": {"stps": 1}}}):
        with pytest.raises(UserError, match="stps.*steps"):
            checked(Outer, values, "settings")


class Kinds(Strict):
    whole: int = 1
    share: float | None = 0.5
    sizes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    switch: bool = True
    anything: dict[str, Any] = {}


@pytest.mark.parametrize("name, value", [
    ("whole", True), ("share", False), ("sizes", [True]), ("sizes", [4, False]), ("sizes", True),
])  # fmt: skip
def test_true_and_false_are_no_numbers(name, value):
    with pytest.raises(UserError, match=f"setting {name}: (true|false) is no number"):
        checked(Kinds, {name: value}, "setting")
    assert checked(Kinds, {"switch": False, "anything": {"a": True}}, "setting").anything == {"a": True}


def test_what_a_list_names_is_taken_once():
    found = checked(Kinds, {"sizes": [4, 2, 4], "names": ["b", "a", "b"]}, "setting")
    assert (found.sizes, found.names) == ((4, 2), ("b", "a"))
