"""The package as a whole: what importing costs and registers, and that version and licence are where tools look."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

import anchorlm

ROOT = Path(__file__).resolve().parent.parent


def test_importing_registers_the_model_type():
    assert AutoConfig.for_model("anchorlm").model_type == "anchorlm"
    assert AutoModelForCausalLM._model_mapping[anchorlm.AnchorConfig] is anchorlm.AnchorForCausalLM


def test_one_name_serves_package_and_function():
    import anchorlm.convert.bases as by_import
    from anchorlm.convert import bases

    assert by_import is bases
    with pytest.raises(anchorlm.UserError, match="anchorlm model already"):
        anchorlm.convert(anchorlm.AnchorForCausalLM.__new__(anchorlm.AnchorForCausalLM), None)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = anchorlm.nonsense


def test_the_program_starts_without_torch():
    code = "import sys; sys.argv[0] = 'anchorlm'; import anchorlm.cli.__main__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == anchorlm.__version__
    assert all((ROOT / pattern).exists() for pattern in ("LICENSE", "NOTICE", "licenses"))


def test_the_lock_names_no_host_and_pins_everything():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and "/" not in line and "+" not in line for line in lines)
    assert "torch==2.13.0" in lines
