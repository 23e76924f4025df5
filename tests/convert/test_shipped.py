"""Adapters that come with the package are known by their names, as folders and bases are."""

import pytest

from anchorlm.cli import __main__ as program
from anchorlm.convert import files
from anchorlm.convert.bases import load_base
from anchorlm.convert.load import load, load_tokenizer
from anchorlm.convert.summary import source_config, stored_lora
from anchorlm.core import UserError
from anchorlm.shipped import located, shipped


def test_every_name_is_a_whole_adapter():
    assert {"smollm2-135m-anchor", "smollm2-135m-kept", "smollm2-135m-kept-heads", "smollm2-135m-hybrid"} <= set(
        shipped()
    )
    for name in shipped():
        assert files.is_adapter(located(name)) and stored_lora(name)
        assert source_config(name)[1]["base"].startswith("smollm2-135m")


def test_other_paths_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = shipped()[0]
    assert located("smollm2-135m") == "smollm2-135m" and located(tmp_path) == tmp_path
    (tmp_path / name).mkdir()
    assert located(name) == name


def test_the_command_line_takes_them(capsys):
    assert program.run(["info", "smollm2-135m-kept"]) == 0
    assert "kept" in capsys.readouterr().out


def test_a_near_name_is_suggested():
    with pytest.raises(UserError, match="did you mean 'smollm2-135m-hybrid'"):
        load_base("smollm2-135m-hybrd")


@pytest.mark.data
def test_their_weights_load(smollm2):
    model, tokenizer = load("smollm2-135m-hybrid")
    assert sum(reach.kind == "full" for reach in model.plan.layers) == 4
    assert load_tokenizer("smollm2-135m-hybrid").vocab_size == tokenizer.vocab_size
