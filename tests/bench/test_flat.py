"""Reading holds one block's activations and the state, whatever the length: bytes alive, to the byte."""

import gc

import pytest
import torch

import builders
from anchorlm.plan import Plan
from anchorlm.reading import prefill
from storage import LiveBytes

PLAN = {"attention": {"kind": "window", "window": 16, "sinks": 2}, "slots": {"s": {"write": 0, "read": [0, 3]}}}
BLOCK = 32


def alive(model, blocks, read):
    """(most bytes alive while reading, bytes alive after it) of a text of so many blocks."""
    gc.collect()
    with LiveBytes() as live:
        kept = read(model, torch.zeros(1, blocks * BLOCK, dtype=torch.long))
        gc.collect()
        after, text = live.now, blocks * BLOCK * 8
        del kept
    return live.most - text, after - text


def hybrid(chunk=16):
    plan = Plan.from_dict({**PLAN, "slots": {"s": {**PLAN["slots"]["s"], "chunk": chunk}}}, 4)
    return builders.hybrid(plan=plan, dtype=torch.float32).eval().requires_grad_(False)


READERS = {
    "any model": lambda model, ids: [ids, prefill(model, ids, BLOCK)],
    "its own": lambda model, ids: [ids, model.prefill(ids, block=BLOCK)],
}


@pytest.mark.parametrize("name", READERS)
def test_bytes_alive_do_not_depend_on_the_length(name):
    model = hybrid()
    alive(model, 2, READERS[name])
    short, long = alive(model, 8, READERS[name]), alive(model, 32, READERS[name])
    assert 0 < short[1] < short[0]
    assert long == short


def test_the_account_sees_what_grows():
    """The same weights under full attention: the cache grows by what its formula says, and so does the account."""
    model = hybrid()

    def read(model, ids):
        cache = model.new_cache()
        model.hidden(ids, cache=cache, plan=model.plan.teacher(), block=BLOCK)
        return [ids, cache]

    short, long = alive(model, 8, read), alive(model, 32, read)
    assert long[1] - short[1] >= 24 * BLOCK * 2 * 2 * 8 * 4 * 4  # tokens, keys and values, heads, width, layers, fp32


def test_a_state_keeps_no_block_alive():
    """The state's own account and the storages behind it are of one size, but for the slack that saves copies."""
    model = hybrid()
    _, cache = model.prefill(torch.zeros(1, 4 * BLOCK + 5, dtype=torch.long), block=BLOCK)
    storages = {}
    cache.state.map(lambda t: storages.__setitem__(t.untyped_storage()._cdata, t.untyped_storage().nbytes()) or t)
    assert sum(storages.values()) <= 1.25 * sum(cache.nbytes().values())
