"""The whole model under torch's compiler with generated code: the same logits and gradients as step by step."""

import shutil

import pytest
import torch

import builders
from builders import assert_near, tokens

COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
PLANS = {
    "window": {"attention": {"kind": "window", "window": 6, "sinks": 2}},
    "hybrid": {
        "attention": {"kind": "window", "window": 6, "sinks": 2},
        "slots": {"s": {"write": 0, "read": [0, 1], "chunk": 6}},
    },
}


def outcome(model, run, ids):
    """Logits [B, T, V] and the gradient of every parameter that has one."""
    model.zero_grad()
    out = run(ids).logits
    (out * builders.normal(*out.shape, dtype=out.dtype)).sum().backward()
    return out.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the compiler itself warns about
@pytest.mark.skipif(COMPILER is None, reason="NOT TESTED: torch's compiler needs a C++ compiler, none is installed")
@pytest.mark.parametrize("name", PLANS)
def test_generated_code_gives_the_same_logits_and_gradients(name):
    """Bands, sinks, chunks and reads in fp32; parts that the compiler leaves to Python count too."""
    plan = builders.Plan.from_dict(PLANS[name], 2)
    model = builders.hybrid(plan=plan, layers=2, dtype=torch.float32).train()
    ids = tokens(2, 29)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="inductor")
    logits, grads = outcome(model, model, ids)
    theirs, their_grads = outcome(model, compiled, ids)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert_near(theirs, logits, 1e-4)
    assert their_grads.keys() == grads.keys()
    for parameter, grad in grads.items():
        assert float((their_grads[parameter] - grad).norm() / (1e-6 + grad.norm())) < 1e-3, parameter
