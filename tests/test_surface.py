"""What users build on is frozen: names, verbs, flags, plan and recipe keys. `make surface` accepts a change."""

import json
from dataclasses import fields
from pathlib import Path

from typer.main import get_command

FROZEN = Path(__file__).with_name("surface.json")


def surface():
    return {"python": python_names(), "verbs": verbs(), "plan": plan_keys(), "recipe": recipe_keys()}


def python_names():
    import anchorlm

    return sorted(anchorlm.__all__)


def verbs():
    from anchorlm.cli.__main__ import app

    commands = get_command(app).commands
    return {name: sorted(flags_of(command)) for name, command in sorted(commands.items())}


def flags_of(command):
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        names = [parameter.name.upper()] if is_argument else [*parameter.opts, *parameter.secondary_opts]
        yield from names


def plan_keys():
    from anchorlm.plan import Reach, ReadMap, Slot
    from anchorlm.presets import PRESETS
    from anchorlm.rules import RULES

    groups = {"reach": Reach, "slot": Slot, "map": ReadMap}
    keys = {name: sorted(field.name for field in fields(kind)) for name, kind in groups.items()}
    rules = {name: sorted(field.name for field in fields(options)) for name, options in sorted(RULES.items())}
    return {**keys, "rules": rules, "presets": sorted(PRESETS)}


def recipe_keys():
    from anchorlm.settings import Recipe, flatten

    return sorted(flatten(Recipe().model_dump()))


def test_the_surface_is_the_frozen_one():
    frozen = json.loads(FROZEN.read_text())
    assert surface() == frozen, "the public surface changed; if on purpose, run `make surface`"


def test_every_public_name_exists():
    import anchorlm

    assert all(getattr(anchorlm, name) is not None for name in anchorlm.__all__)
    assert set(anchorlm.__all__) <= set(dir(anchorlm))
    assert callable(anchorlm.convert) and callable(anchorlm.train)


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(surface(), indent=1) + "\n")
    print(f"wrote {FROZEN}")
