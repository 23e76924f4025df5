"""Table 1: groups of layers whose states are off."""

import pytest

from anchorlm.core import UserError
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from anchorlm.reproduce import load_scale, table1
from reproduced import by_name


def test_switching_nothing_off_is_the_trained_row(done):
    """Table 1's first row is scored through a view of the model, Table 2's through the model itself."""
    found = by_name(done[1])
    first = {row[0]: row for row in found["table1"]["tables"][0]["rows"]}
    second = {row[0]: row for row in found["table2"]["tables"][0]["rows"]}
    assert first[table1.INTACT][4] == second["Anchor-F, a private state in every layer"][2]
    assert first[table1.INTACT][2] == "4" and first[table1.ALL][2] == "0" and first[table1.ALL][3] == "0.00 MB"
    assert [first[name][2] for name in (table1.BOUNDARY, table1.OTHERS)] == ["2", "2"]


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
