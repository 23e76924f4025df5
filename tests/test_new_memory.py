"""A rule in one file outside the package: loaded, checked, converted, trained, generated from, merged; and mistakes."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from anchorlm.cli import __main__ as program
from anchorlm.conformance import CHECKS, check_rules
from anchorlm.convert.load import load
from anchorlm.core import UserError
from anchorlm.memory import Memory, load_rules
from anchorlm.rules import RULES
from hybrids import base_folder, tokens
from test_docs import ROOT, snippets

__all__ = ["base_folder"]
SOURCE = next(snippets(ROOT / "docs" / "new-memory.md", "python")).body


@pytest.fixture
def leaky(tmp_path):
    path = tmp_path / "leaky.py"
    path.write_text(SOURCE)
    return path


def call(*arguments):
    return program.run([str(argument) for argument in arguments])


def test_the_file_is_short_and_registers(leaky):
    assert len(SOURCE.splitlines()) < 80 and "leaky" not in RULES
    assert load_rules(leaky) == load_rules(leaky) == ["leaky"]
    assert RULES["leaky"].__name__ == "LeakyOptions" and Memory.rules["leaky"].__module__ == "anchorlm_rules_leaky"


def test_doctor_says_that_it_conforms(leaky, capsys):
    assert call("doctor", "--rules", leaky, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["checks"]
    assert {row["check"] for row in rows} == set(CHECKS) and len(rows) == 2 * len(CHECKS)
    assert not [row for row in rows if row["broken"]]


def test_convert_train_generate_and_merge(leaky, base_folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("It was a dark and stormy night. " * 60)
    own = ["--rules", leaky]
    sets = ["window=8", "rule=leaky", "options.keep=0.7"]
    given = ["--plan", "anchor", *own, *(part for value in sets for part in ("--set", value))]
    assert call("convert", base_folder, *given, "-o", tmp_path / "d") == 0
    few = ["data.length=48", "stage1.steps=3", "stage2.steps=2", "eval_every=0"]
    sets = [part for value in few for part in ("--set", value)]
    assert call("train", tmp_path / "d", *own, "--data", tmp_path / "text.txt", *sets, "-o", tmp_path / "t") == 0
    assert call("generate", tmp_path / "t", *own, "--prompt", "Who?", "--max-new-tokens", 2) == 0
    trained, _ = load(tmp_path / "t", "float32")
    memory = trained.backbone.model.layers[0].self_attn.writers["head"].memory
    assert not torch.allclose(torch.sigmoid(memory.raw_keep), torch.tensor(0.7), atol=1e-5)
    assert call("merge", tmp_path / "t", *own, "--dtype", "float32", "-o", tmp_path / "whole") == 0
    with torch.no_grad():
        expected = trained(tokens(1, 30)).logits
    torch.save(expected, tmp_path / "expected.pt")
    torch.save(tokens(1, 30), tmp_path / "ids.pt")
    code = (
        "import sys, torch; sys.modules['anchorlm'] = None\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained(r'{tmp_path / 'whole'}', trust_remote_code=True)\n"
        f"ids, expected = (torch.load(r'{tmp_path}/' + name) for name in ('ids.pt', 'expected.pt'))\n"
        "with torch.no_grad():\n"
        "    assert torch.allclose(model(ids).logits, expected, atol=1e-4)\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "ANCHORLM_RULES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_folder_of_an_unknown_rule_says_what_is_missing(leaky, base_folder, tmp_path, monkeypatch, capsys):
    given = ["--rules", leaky, "--set", "rule=leaky", "--set", "window=8"]
    assert call("convert", base_folder, *given, "-o", tmp_path / "d") == 0
    for registry in (RULES, Memory.rules):
        registry.pop("leaky")
    sys.modules.pop("anchorlm_rules_leaky")
    monkeypatch.delenv("ANCHORLM_RULES")
    assert call("info", tmp_path / "d") == 2
    assert "rule is 'leaky'" in (said := capsys.readouterr().err) and "--rules FILE" in said and said.count("\n") == 1
    with pytest.raises(UserError, match="--rules FILE"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "d")
    monkeypatch.setenv("ANCHORLM_RULES", str(leaky))
    assert call("info", tmp_path / "d") == 0


BROKEN = {
    "forgets nothing of the order": ("keep * state", "keep * torch.rand(()) * state", "C1 prefix"),
    "says too few bytes": ("dim * dim * 4", "dim * 4", "C8 bytes"),
    "learns nothing": ("torch.sigmoid(self.raw_keep)\n", "torch.sigmoid(self.raw_keep.detach())\n", "C10 C13 learning"),
    "has a wrong gradient": ("(1 - keep) * mean", "(1 - keep.detach()) * mean", "C4 gradient"),
    "mixes rows": ("k / k.shape[2]", "k.mean(0, True) / k.shape[2]", "C6 padding"),
    "falls over": ("v.transpose(-1, -2) @ k", "v @ k", "C1 prefix"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_doctor_names_what_a_rule_breaks(how, leaky, capsys):
    right, wrong, check = BROKEN[how]
    assert right in SOURCE
    leaky.write_text(SOURCE.replace(right, wrong))
    load_rules(leaky)
    broken = {row["check"] for row in check_rules(["leaky"]) if row["broken"]}
    assert check in broken
    if how == "says too few bytes":
        assert broken == {check} and call("doctor", "--rules", leaky) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "rule 'leaky' breaks 2 of 22 checks; C8 bytes on llama: Broken: fast weights" in said


def test_our_own_rules_are_put_to_it_with_any_fields_of_a_slot(capsys):
    told = []
    for rule, slot in (("hedgehog", None), ("gla", {"map": "cayley"})):
        rows = check_rules([rule], slot, progress=lambda done, total: told.append((done, total)))
        assert not [row for row in rows if row["broken"]]
    assert told[-1] == (2 * len(CHECKS), 2 * len(CHECKS)) and len(told) == 4 * len(CHECKS)
    with pytest.raises(UserError, match="rule is 'glo'; one of your own needs --rules FILE; did you mean 'gla'"):
        check_rules(["glo"])
    with pytest.raises(UserError, match="slots.own.lag is 'evicted'; rule 'gla' takes self"):
        check_rules(["gla"], {"lag": "evicted"})


MISTAKES = {
    "none.py": (None, "rules file none.py: no such file"),
    "empty.py": ("x = 1\n", "adds no rule; see docs/new-memory.md"),
    "bad.py": ("1 / 0\n", "cannot be used: ZeroDivisionError: division by zero"),
    "exits.py": ("import sys\nsys.exit(0)\n", "cannot be used: SystemExit: 0"),
    "worse.py": ("def f(:\n", "cannot be used: SyntaxError"),
    "rules.txt": ("x = 1\n", "its name must end in .py"),
    "taken.py": (SOURCE.replace('"leaky"', '"linear"'), "rule 'linear' is there already, in anchorlm.memory.linear"),
    "bare.py": (SOURCE.replace(", options=LeakyOptions", ""), "rule 'leaky' has no options"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_file_is_told_in_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, said = MISTAKES[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    assert call("info", "--shape", "smollm2-135m", "--rules", name) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert "leaky" not in RULES and f"anchorlm_rules_{name[:-3]}" not in sys.modules or name == "empty.py"


def test_options_of_ones_own_are_checked_like_ours(leaky, capsys):
    given = ["info", "--shape", "smollm2-135m", "--plan", "anchor", "--rules", leaky, "--set", "rule=leaky"]
    assert call(*given, "--set", "options.keep=-1") == 2
    assert "slots.head.options.keep is -1; it must be a positive number" in capsys.readouterr().err
    assert call(*given) == 0 and "leaky" in capsys.readouterr().out
