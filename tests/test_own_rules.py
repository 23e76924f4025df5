"""What a rule of one's own does wrong is told in one line that names the rule, its file and what failed."""

import pytest

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
