"""What a rule of one's own does wrong is told in one line that names the rule, its file and what failed."""

import json
import re
import sys

import pytest
import torch

from anchorlm.cli import __main__ as program
from anchorlm.core import UserError
from anchorlm.memory import Memory, load_rules
from anchorlm.rules import RULES
from hybrids import base_folder
from test_new_memory import SOURCE, call, leaky

__all__ = ["base_folder", "leaky"]
WRITE = 'return {"s": keep * state["s"] + (1 - keep) * mean}'
READ = 'return Partial(q @ readable["s"].transpose(-1, -2))'
START = 'return {"s": self.raw_keep.new_zeros(rows, len(self.raw_keep), self.dim, self.dim)}'
FAULTS = {
    "write fails": ("v.transpose(-1, -2) @ k", "v @ k", ", in write): RuntimeError: "),
    "read fails": ('readable["s"]', 'readable["t"]', ", in read): KeyError: 't'"),
    "start fails": (START, "return {}[rows]", ", in start): KeyError: 2"),
    "its options fail": ('positive(self.keep, f"{where}.keep")', "self.keep / 0", ", in check): ZeroDivisionError"),
    "its bytes fail": ("dim * dim * 4", "dim[0]", ", in state_bytes): TypeError"),
    "it cannot be made": ("self.options, self.dim = options, dim", "self.dim", ", in __init__): AttributeError"),
    "write gives nothing": (WRITE, "pass", "): write gives no dictionary of tensors but NoneType"),
    "write renames": (WRITE, 'return {"t": mean}', "): write gives {'t': (2, "),
    "write reshapes": (WRITE, 'return {"s": mean.mean(-1)}', "): write gives {'s': (2, "),
    "start forgets a row": ("new_zeros(rows, ", "new_zeros(1, ", "): start gives 's' of shape (1, "),
    "read gives a tensor": (READ, 'return q @ readable["s"]', "): read gives no Partial but Tensor"),
    "read turns its answers": (READ, READ[:15] + "(" + READ[15:-1] + ").mT)", "): read gives answers of shape (2, "),
    "read gives half": (READ, READ[:-1] + "[..., :4])", "): read gives answers of shape (2, "),
    "tokens are short": (
        "    def start", "    def tokens(self, x, k=None):\n        return {'a': x[:, 1:]}\n\n    def start",
        "): tokens gives 'a' of shape (2, ",
    ),
}  # fmt: skip
METHODS = ["start", "write", "read", "__init__", "state_bytes"]
UNUSABLE = {
    "no kv_heads": (
        "hidden, kv_heads=0",
        "hidden",
        "rule 'leaky', line 29: __init__.* cannot be called as rule(options, ",
    ),
    "one more": ("kv_heads=0", "kv_heads, more", "__init__.* cannot be called as .*: missing .*'more'"),
    "options of another kind": (
        "options=LeakyOptions)",
        "options=dict)",
        "options is <class 'dict'>; it must be a data",
    ),
    "options made": (
        "options=LeakyOptions)",
        "options=LeakyOptions())",
        "options is LeakyOptions.*; it must be a data",
    ),
    "an exit": ('"""A leaky', 'import sys\nsys.exit("bye")\n"""A leaky', "SystemExit: bye"),
    "a base exception": ('"""A leaky', 'raise GeneratorExit("odd")\n"""A leaky', "GeneratorExit: odd"),
}
BYTES = ['"many"', '{"fast weights": ""}', '{"fast weights": -4}', '{"fast weights": 4.5}', '{"fast weights": True}',
         '{"mine": 4}', "None", '{"fast weights": 10**400}']  # fmt: skip
NAMES = ["", " ", "two words", "a/b", "../up", "a:b", "-x", "1st", "null", "Yes", "a\nb", "\u0663", "ü"]


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_names_rule_file_and_function(how, leaky, base_folder, tmp_path, capsys):
    right, wrong, told = FAULTS[how]
    assert right in SOURCE
    (tmp_path / "text.txt").write_text("some words " * 60)
    given = ["--rules", leaky, "--set", "rule=leaky", "--set", "window=12"]
    leaky.write_text(SOURCE.replace(right, wrong))
    code = call("convert", base_folder, *given, "-o", tmp_path / "hybrid")
    if code == 0:
        few = ["--context", 64, "--limit", 2, "--set", "batch=2"]
        code = call("eval", tmp_path / "hybrid", "--rules", leaky, "--data", tmp_path / "text.txt", *few)
    said = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and said.startswith(f"error: rule 'leaky' ({leaky}") and told in said, said
    assert said.endswith(f"anchorlm doctor --rules {leaky} puts it to its checks")


def test_a_fault_in_training_is_told_too_and_debugging_shows_where(leaky, base_folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "text.txt").write_text("some words " * 60)
    leaky.write_text(SOURCE.replace("v.transpose(-1, -2) @ k", "v @ k"))
    given = ["--rules", leaky, "--set", "rule=leaky", "--set", "window=12"]
    assert call("convert", base_folder, *given, "-o", tmp_path / "hybrid") == 0
    line = ["train", tmp_path / "hybrid", "--rules", leaky, "--data", tmp_path / "text.txt", "--set", "data.length=32"]
    capsys.readouterr()
    assert call(*line, "-o", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert f"rule 'leaky' ({leaky}, line " in said and "Traceback" not in said
    monkeypatch.setenv("ANCHORLM_DEBUG", "1")
    assert call(*line, "-o", tmp_path / "again") == 2
    assert "Traceback" in (said := capsys.readouterr().err) and f"rule 'leaky' ({leaky}, line " in said


def test_a_fault_of_ours_is_not_blamed_on_a_rule(leaky, monkeypatch, capsys):
    load_rules(leaky)
    assert program.classify(RuntimeError("ours"))[0] == 1
    try:
        Memory.rules["leaky"].write(None, None, None, None, None)
    except AttributeError as raised:
        error = raised
    code, said = program.classify(error)
    assert code == 2 and "in write): AttributeError" in said
    monkeypatch.setattr(program, "OUT_OF_MEMORY", ("no attribute",))
    assert program.classify(error)[1].startswith("out of memory")


@pytest.mark.parametrize("name", [*NAMES, 5])
def test_a_name_must_fit_a_plan_and_a_command_line(name, tmp_path):
    path = tmp_path / "named.py"
    path.write_text(SOURCE.replace('rule="leaky"', f"rule={name!r}"))
    with pytest.raises(UserError, match="named.py cannot be used: rule name .* is not allowed; allowed: a letter"):
        load_rules(path)


@pytest.mark.parametrize("name", RULES)
def test_no_rule_of_ours_can_be_replaced(name, tmp_path):
    before = RULES[name], Memory.rules[name]
    path = tmp_path / "named.py"
    path.write_text(SOURCE.replace('rule="leaky"', f"rule={name!r}"))
    with pytest.raises(UserError, match=f"rule '{name}' is there already, in anchorlm.memory"):
        load_rules(path)
    assert (RULES[name], Memory.rules[name]) == before


@pytest.mark.parametrize("name", ["leaky", "Leaky_2", "a", "leaky-average.v2"])
def test_other_names_are_taken(name, tmp_path):
    path = tmp_path / "named.py"
    path.write_text(SOURCE.replace('rule="leaky"', f"rule={name!r}"))
    assert load_rules(path) == [name]


@pytest.mark.parametrize("how", UNUSABLE)
def test_a_file_that_cannot_be_used_is_told_when_it_is_read(how, leaky, capsys):
    right, wrong, told = UNUSABLE[how]
    assert right in SOURCE
    leaky.write_text(SOURCE.replace(right, wrong))
    for line in (["doctor"], ["info", "nosuch", "--plan", "anchor"]):
        assert call(*line, "--rules", leaky) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and "leaky.py cannot be used: " in said.err
        assert re.search(told.replace("(", r"\("), said.err), said.err
    assert "leaky" not in RULES and "leaky" not in Memory.rules


@pytest.mark.parametrize("name", METHODS)
def test_a_function_that_is_missing_is_named(name, leaky, capsys):
    leaky.write_text(SOURCE.replace(f"def {name}(", f"def other_{name}("))
    assert call("doctor", "--rules", leaky) == 2
    assert f"leaky.py cannot be used: rule 'leaky' has no {name}" in capsys.readouterr().err


def test_a_stream_that_is_missing_is_named(leaky):
    start = SOURCE.index("    def write")
    leaky.write_text(SOURCE[:start].replace("Memory", "StreamMemory").replace("class LeakyStream", "class Leaky")
                     + "    @staticmethod\n    def read(readable, q):\n        return None\n")  # fmt: skip
    with pytest.raises(UserError, match="rule 'leaky' has no stream; every rule needs its own"):
        load_rules(leaky)


@pytest.mark.parametrize("given", BYTES)
def test_bytes_that_are_none(given, leaky, base_folder, tmp_path, capsys):
    leaky.write_text(SOURCE.replace('{"fast weights": heads * dim * dim * 4}', given))
    for line in (["info", base_folder, "--plan", "anchor"], ["convert", base_folder, "-o", tmp_path / "hybrid"]):
        assert call(*line, "--rules", leaky, "--set", "rule=leaky", "--set", "window=12") == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"error: rule 'leaky' ({leaky}): state_bytes gives ") and said.err.count("\n") == 1
    assert not (tmp_path / "hybrid").exists()


@pytest.mark.parametrize("raised, code, told", [
    ("sys.exit(3)", 2, "error: rule 'leaky' ({leaky}, line 5"), ("sys.exit()", 2, "in read): SystemExit: "),
    ("raise GeneratorExit", 2, "in read): GeneratorExit: "), ("raise KeyboardInterrupt", 130, "interrupted"),
])  # fmt: skip
def test_what_ends_a_program_is_told(raised, code, told, leaky, base_folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("some words " * 60)
    given = ["--rules", leaky, "--set", "rule=leaky", "--set", "window=12"]
    assert call("convert", base_folder, *given, "-o", tmp_path / "hybrid") == 0
    leaky.write_text(SOURCE.replace(READ, f"import sys\n        {raised}"))
    sys.modules.pop("anchorlm_rules_leaky")  # as in a program of its own
    capsys.readouterr()
    line = ["eval", tmp_path / "hybrid", "--rules", leaky, "--data", tmp_path / "text.txt", "--context", 64]
    assert call(*line) == code
    assert told.format(leaky=leaky) in capsys.readouterr().err.splitlines()[-1]


def test_an_interrupt_while_a_file_is_read(leaky, capsys):
    leaky.write_text("raise KeyboardInterrupt")
    assert call("doctor", "--rules", leaky) == 130 and capsys.readouterr().err == "interrupted\n"


def test_doctor_counts_an_exit_as_broken(leaky, capsys):
    leaky.write_text(SOURCE.replace(READ, "raise SystemExit(3)"))
    assert call("doctor", "--rules", leaky, "--json") == 2
    rows = json.loads(capsys.readouterr().out)["checks"]
    assert {row["broken"] for row in rows} == {"SystemExit: 3"}


@pytest.mark.parametrize("right, wrong", [
    (READ, READ[:-1] + " * float('nan'))"), (START, START.replace("dim)", "dim) * float('inf')")),
])  # fmt: skip
@pytest.mark.parametrize("suite", ["ppl", "niah", "ar"])
def test_no_number_is_measured_on_nan(right, wrong, suite, leaky, base_folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("some words " * 60)
    leaky.write_text(SOURCE.replace(right, wrong))
    given = ["--rules", leaky, "--set", "rule=leaky", "--set", "window=12"]
    assert call("convert", base_folder, *given, "-o", tmp_path / "hybrid") == 0
    few = ["--suite", suite, "--context", 64 if suite == "ppl" else 200, "--limit", 1, "-o", tmp_path / "run"]
    text = [] if suite == "ar" else ["--data", tmp_path / "text.txt"]
    assert call("eval", tmp_path / "hybrid", "--rules", leaky, *text, *few) == 2
    assert "error: the model gives NaN at " in (said := capsys.readouterr().err) and "of rule 'leaky', hold" in said, (
        said
    )
    assert not (tmp_path / "run" / f"{suite}.json").exists()


@pytest.mark.parametrize("dtype", ["double", "half", "int"])
def test_answers_of_another_dtype(dtype, leaky, capsys):
    leaky.write_text(SOURCE.replace(READ, READ[:15] + "(" + READ[15:-1] + f").{dtype}())"))
    assert call("doctor", "--rules", leaky, "--json") == 2
    broken = [row["broken"] for row in json.loads(capsys.readouterr().out)["checks"]]
    assert any(
        f"read gives answers of dtype {str(getattr(torch.ones(1), dtype)().dtype)[6:]} to" in (one or "")
        for one in broken
    )


def test_what_a_file_prints_is_no_result(leaky, base_folder, capsys):
    leaky.write_text("print('noise')\n" + SOURCE)
    assert call("info", base_folder, "--plan", "anchor", "--rules", leaky, "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["plan_name"] == "anchor" and "noise" in said.err


def test_a_file_that_is_named_twice_is_checked_once(leaky, capsys):
    assert load_rules(leaky, leaky) == ["leaky"]


SAYS = {
    "in its options": "        positive(",
    "in its bytes": '        return {"fast weights"',
    "when it is made": "        self.options, self.dim",
    "in start": '        return {"s": self.raw_keep.new_zeros',
    "in write": "        keep = torch.sigmoid",
    "in read": "        return Partial(",
}
TEXT = ["--data", "{tmp}/text.txt", "--context", "64"]
VERBS = [
    ("convert", "{base}", "--set", "rule=leaky", "--set", "window=12", "-o", "{tmp}/other"),
    ("info", "{tmp}/hybrid"),
    ("eval", "{tmp}/hybrid", *TEXT, "--limit", "2"),
    ("train", "{tmp}/hybrid", "--dry-run"),
    ("analyze", "{tmp}/hybrid", *TEXT, "--what", "similarity", "--documents", "2"),
    ("generate", "{tmp}/hybrid", "--prompt", "Who is the hero?", "--max-new-tokens", "2"),
]


def test_what_a_rule_prints_does_not_reach_the_results(leaky, base_folder, tmp_path, capsys):
    source = SOURCE
    for how, line in SAYS.items():
        assert source.count(line) == 1, how
        source = source.replace(line, f"        print('said {how}')\n{line}")
    leaky.write_text(source)
    (tmp_path / "text.txt").write_text("".join(f"some words {number} " for number in range(60)))
    places = {"base": base_folder, "tmp": tmp_path}
    made = ["--rules", leaky, "--set", "rule=leaky", "--set", "window=12", "-o", tmp_path / "hybrid"]
    assert call("convert", base_folder, *made) == 0
    assert "said" not in capsys.readouterr().out
    heard = ""
    for verb in VERBS:
        assert call(*[part.format(**places) for part in verb], "--rules", leaky, "--json") == 0, verb
        shown = capsys.readouterr()
        assert isinstance(json.loads(shown.out), dict), verb
        heard += shown.err
    assert all(f"said {how}" in heard for how in SAYS)
