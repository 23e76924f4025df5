"""What every test may ask for: no surprise from the user's environment, and the packaged weights if they can be had."""

import os
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def no_hub():
    """Tests never depend on what a hub serves today; a test of the hub itself lifts this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORLM_OFFLINE", "1")
        yield


@pytest.fixture(autouse=True)
def no_rules_stay(monkeypatch):
    """A rule that a test defines or loads ends with it."""
    from anchorlm.memory import Memory
    from anchorlm.rules import RULES

    kept = [(registry, dict(registry)) for registry in (RULES, Memory.rules)]
    monkeypatch.setenv("ANCHORLM_RULES", "")
    yield
    for registry, before in kept:
        if registry != before:
            registry.clear()
            registry.update(before)
    for name in [name for name in sys.modules if name.startswith("anchorlm_rules_")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def smollm2(no_hub):
    """SmolLM2-135M from the wheel as a loaded float32 Base; the first use on a machine takes a minute."""
    from anchorlm.convert.bases import load_base
    from anchorlm.core import UserError

    try:
        return load_base("smollm2-135m", dtype="float32")
    except UserError as error:
        pytest.skip(f"the packaged weights cannot be had: {error}")
