"""Whole numbers that no tensor can hold are refused wherever one may be given, before anything is done."""

import types
from typing import Union, get_args, get_origin

import pytest
from pydantic import ValidationError

from anchorlm import mad, presets, reproduce, results
from anchorlm.analyze.explain.job import Options
from anchorlm.analyze.settings import Settings
from anchorlm.core import LARGEST, MANY, UserError
from anchorlm.eval import EvalOptions
from anchorlm.plan import ModelShape, Plan
from anchorlm.reproduce.sizes import Timing
from anchorlm.rules import RULES
from anchorlm.settings import Strict, checked
from small import tiny_llama

__all__ = ["mad", "reproduce", "results"]  # their settings are looked at too
HUGE = [LARGEST + 1, 10**20, 10**400]
SHAPE = ModelShape.from_config(tiny_llama().config)


def whole(kind):
    """Whether an annotation takes a whole number."""
    return kind is int or (get_origin(kind) in (Union, types.UnionType) and int in get_args(kind))


def settings(kind=Strict):
    for sub in kind.__subclasses__():
        yield from ([sub] if sub.__module__.startswith("anchorlm.") else [])
        yield from settings(sub)


FIELDS = [
    (kind, name) for kind in settings() for name, field in kind.model_fields.items()
    if whole(field.annotation) and kind.__name__ != "Record"
]  # fmt: skip
PLANS = ["window", "sinks", "slots.head.chunk", "slots.head.conv", "slots.head.detach", "slots.head.lag"]
OPTIONS = [(rule, name) for rule in ("swiglu-ttt", "nmm", "delta", "kept", "hedgehog", "gla", "gsa")
           for name, hint in RULES[rule].__annotations__.items() if hint in ("int", "float")]  # fmt: skip
EVAL = ["context", "needles", "batch", "block", "limit", "window", "lengths"]


def refused(what, *words):
    with pytest.raises(UserError) as caught:
        what()
    said = str(caught.value)
    assert "\n" not in said and all(word in said for word in words), said


@pytest.mark.parametrize("kind, name", FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_of_settings(kind, name):
    for value in [2**63, *HUGE[1:]] if name == "seed" else HUGE:
        with pytest.raises(ValidationError) as caught:  # what else is missing is told too
            kind.model_validate({name: value})
        assert (name,) in [error["loc"] for error in caught.value.errors()]


@pytest.mark.parametrize("kind, name", [(Options, "windows"), (Options, "kept"), (Timing, "lengths")])
def test_of_lists_of_settings(kind, name):
    for value in HUGE:
        refused(lambda value=value: checked(kind, {name: [4, value]}, "setting"), f"setting {name}", "at most")


@pytest.mark.parametrize("name", PLANS)
def test_of_plans(name):
    *groups, last = name.split(".")
    for value in HUGE:
        given = {last: value}
        for group in reversed(groups):
            given = {group: given}
        refused(lambda given=given: presets.load_plan("anchor", SHAPE, given), last, f"at most {LARGEST:,}")


@pytest.mark.parametrize("rule, name", OPTIONS)
def test_of_options_of_rules(rule, name):
    for value in HUGE:
        slot = {"write": 0, "read": [0], "rule": rule, "options": {name: value}}
        plan = Plan.from_dict({"attention": {"kind": "full"}, "slots": {"a": slot}}, SHAPE.layers)
        refused(lambda plan=plan: plan.check(SHAPE), f"slots.a.options.{name} is")


@pytest.mark.parametrize("name", EVAL)
def test_of_evaluations(name):
    for value in HUGE:
        given = [value] if name == "lengths" else value
        refused(lambda given=given: EvalOptions.of(**{name: given}), f"eval option {name}")


@pytest.mark.parametrize("name", ["window", "sinks", "context", "documents", "kept", "steps"])
def test_of_placements(name):
    for value in HUGE:
        refused(lambda value=value: Settings.of(budget="2MB", **{name: value}).check(SHAPE), f"--{name} is")


@pytest.mark.parametrize("line", [
    "convert {base} --set window={n} -o {out}", "info {base} --plan anchor --set window={n}",
    "train {dir} --dry-run --set stage1.steps={n}", "analyze {dir} --what ablation --data {out} --set windows=[{n}]",
    "eval {dir} --data {out} --set block={n}", "results core --lengths {n}", "mad --set training.steps={n}",
    "reproduce figure5 --set stage1.steps={n}",
])  # fmt: skip
def test_of_verbs(call, folder, base_folder, tmp_path, line):
    for value in (LARGEST + 1, 10**20):
        words = line.format(base=base_folder, dir=folder, out=tmp_path / "out", n=value).split()
        code, shown, error = call(*words, *([] if "-o" in words or words[0] in ("info", "train", "eval", "analyze")
                                            else ["-o", tmp_path / "out"]))  # fmt: skip
        assert code == 2 and shown == "" and error.count("\n") == 1 and str(value)[:9] in error, error
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("line", [
    "eval {dir} --suite ar --context 256 --set ar.samples={n}", "eval {dir} --suite ar --set ar.queries={n}",
    "eval {dir} --suite niah --data {text} --set needles={n}", "eval {dir} --suite ruler --set ruler.samples={n}",
    "eval {dir} --suite recall --set recall.samples={n}", "eval {dir} --suite mmlu --set mmlu.shots={n}",
    "eval {dir} --data {text} --set batch={n}", "analyze {dir} --what knockout --data {text} --set recall={n}",
    "analyze {dir} --what knockout --data {text} --documents {n}", "place {base} --data {text} --documents {n}",
    "train {dir} --dry-run --set data.batch={n}", "train {dir} --dry-run --set data.accumulate={n}",
    "train {dir} --dry-run --set eval_batches={n}", "mad --seeds {n}", "mad --set training.batch={n}",
    "mad --set test={n}", "results smollm2 --data {text} --needles {n}", "compare {base} --data {text} --recall {n}",
    "compare {base} --data {text} --needles {n}",
])  # fmt: skip
def test_of_what_is_counted(call, folder, base_folder, tmp_path, line):
    (tmp_path / "text.txt").write_text("some words " * 60)
    for value in (MANY + 1, 999_999_999_999):
        words = line.format(base=base_folder, dir=folder, text=tmp_path / "text.txt", n=value).split()
        out = tmp_path / ("out.yaml" if words[0] == "place" else "out")
        code, shown, error = call(*words, *([] if "--dry-run" in words else ["-o", out]))
        assert code == 2 and shown == "" and error.count("\n") == 1 and str(value) in error, error
        assert not out.exists()
