"""Presets of published methods whose states groups of layers share: what they become, their bytes, and mistakes."""

import re

import pytest

from anchorlm.core import UserError
from anchorlm.describe import notes, state_bytes
from anchorlm.plan import ModelShape
from anchorlm.plan_parts import ReadMap
from anchorlm.presets import build
from test_docs import ROOT

LLAMA = ModelShape(32, 32, 8, 128, 4096, 128256, 131072)
SMALL = ModelShape(8, 4, 2, 16, 64, 100, 512)
METHODS = ("lolcats", "liger", "lizard", "titan-llama")
GROUPS = [[0, 1], [28, 29, 30, 31]]
ALL = {"titan-llama": {"converted": 32}}


@pytest.mark.parametrize("name", METHODS)
def test_groups_share_and_the_rest_has_its_own_or_none(name):
    values = {"titan-llama": {"converted": 8}}.get(name, {})
    own, both = build(name, SMALL, **values), build(name, SMALL, groups=[[0, 1], [4, 6, 7]], **values)
    assert list(both.slots) == ["g0", "g1", "l2", "l3", "l5"] and both.layers == own.layers
    first, second = both.slots["g0"], both.slots["g1"]
    assert (first.write, first.read, second.write, second.read) == (0, (0, 1), 4, (4, 6, 7))
    assert first.map == ReadMap("cayley") and both.slots["l2"] == own.slots["l2"]
    assert first.mix == own.slots["l0"].mix and first.lag == own.slots["l0"].lag
    alone = build(name, SMALL, groups=[[0, 1]], rest="none", map="dense", **values)
    assert list(alone.slots) == ["g0"] and alone.slots["g0"].map == ReadMap("dense")


def test_another_rule_keeps_the_map_of_a_shared_state():
    plan = build("liger", SMALL, groups=[[0, 1]], rule="gsa")
    assert plan.slots["g0"].map == ReadMap("cayley") and plan.slots["l2"].map == ReadMap("none")
    assert build("anchor", SMALL, window=16, rule="gla").slots["tail"].map == ReadMap("cayley")
    assert build("anchor", SMALL, window=16, rule="kept").slots["tail"].map == ReadMap("none")


MISTAKES = {
    "no list": ({"groups": 3}, r"groups is 3; give lists of layers, such as \[\[0, 1\], \[6, 7\]\]"),
    "no layers": ({"groups": [[]]}, r"groups is \[\[\]\]; give lists"),
    "twice": ({"groups": [[0, 1], [1, 2]]}, "groups names layer 1 twice; a layer shares one state"),
    "full": ({"groups": [[2, 3]]}, "groups names layer 3, which has no memory to share; layers 0, 1, 2, 4, 5, 6 have"),
    "beyond": ({"groups": [[0, 8]]}, "groups names layer 8, which has no memory to share"),
    "backwards": ({"groups": [[1, 0]]}, "slots.g0.read names layer 0, below its writer, layer 1"),
    "rest": ({"groups": [[0, 1]], "rest": "private"}, "rest is 'private'; allowed: none, own"),
    "word": ({"groups": [["a", "b"]]}, "give lists of layers"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_groups_that_cannot_be_are_told(case):
    values, said = MISTAKES[case]
    with pytest.raises(UserError, match=said):
        build("liger", SMALL, full_every=4, **values)


def held(name, **values):
    return state_bytes(build(name, LLAMA, **ALL.get(name, {}), **values), LLAMA)["fast weights"]


@pytest.mark.parametrize("name", METHODS)
def test_the_table_of_the_docs_is_what_shapes_say(name):
    page = (ROOT / "docs" / "methods.md").read_text()
    row = re.search(rf"^\| `{name}` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", page, re.M)
    said = [int(value.replace(",", "")) for value in row.groups()]
    assert said == [held(name), held(name, groups=GROUPS), held(name, groups=GROUPS, rest="none")]
    assert said[0] == 32 * said[2] // 2 and said[1] == 28 * said[2] // 2


def test_notes_say_what_sharing_saves():
    (line,) = notes(build("anchor", LLAMA), LLAMA)
    assert (
        line == "2 shared states, 12,582,912 bytes, read by 6 layers; a state of its own in each would take 37,748,736"
    )
    found = notes(build("liger", LLAMA, groups=[[0, 1]]), LLAMA)
    assert (
        found[-1] == "1 shared state, 524,288 bytes, read by 2 layers; a state of its own in each would take 1,048,576"
    )
