"""The state as generate carries it: bytes by part, snapshots, reordering, resets, and what is refused."""

import pytest
import torch
from transformers import DynamicCache

import builders
from anchorlm.describe import state_bytes
from anchorlm.plan import ModelShape
from builders import SLOT_KINDS, assert_near, assert_same_state

KINDS = ["default", "kv", "lag", "conv", "linear", "muon"]


def read(model, ids, cache=None, **options):
    cache = cache or model.new_cache()
    return model(ids, cache=cache, **options).logits, cache


def model_of(kind="default", plan="anchor-f", **values):
    return builders.hybrid(plan=plan, gap=True, **SLOT_KINDS[kind] | values)


def full_at(slot):
    """A length at which a slot's buffer is at its largest and the windows are full."""
    return 12 * slot.chunk - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_measured_bytes_are_the_closed_form_by_part(kind, dtype):
    model = model_of(kind, dtype=dtype)
    slot = next(iter(model.plan.slots.values()))
    shape = ModelShape.from_config(model.backbone.config, bytes_per_element=dtype.itemsize)
    expected = state_bytes(model.plan, shape)
    assert expected.pop("full attention per token") == 0
    _, cache = read(model, builders.tokens(1, full_at(slot)))
    measured = cache.nbytes()
    assert measured.pop("full attention") == 0
    assert measured == expected


@pytest.mark.parametrize("plan", ["anchor", "anchor-f", "anchor-hybrid", "swa", "full"])
@torch.no_grad()
def test_bytes_do_not_grow_with_the_text_except_where_attention_is_full(plan):
    values = {} if plan in ("swa", "full") else {"chunk": 5, "gap": True, "conv": 2, "options": {"momentum": True}}
    model = builders.hybrid(plan=plan, dtype=torch.float32, **values)
    sizes = []
    for length in (29, 59, 119, 239):
        _, cache = read(model, builders.tokens(2, length))
        sizes.append(cache.nbytes())
    growing = [s.pop("full attention") for s in sizes]
    assert all(s == sizes[0] for s in sizes)
    per_token = state_bytes(model.plan, ModelShape.from_config(model.backbone.config, 4))["full attention per token"]
    assert growing == [2 * n * per_token for n in (29, 59, 119, 239)]


@torch.no_grad()
def test_the_memory_behind_the_state_is_not_larger_than_it_says():
    """A state cut from a long block must not keep the block alive."""
    model = model_of("conv", dtype=torch.float32, chunk=8)
    cache = model.new_cache()
    for width in (200, 1, 1, 61):
        model(builders.tokens(2, width), cache=cache)
        assert held_bytes(cache.state) <= 1.25 * sum(cache.nbytes().values())


def held_bytes(state):
    """Bytes of memory that the state's tensors keep alive, each piece counted once."""
    storages = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    state.map(note)
    return sum(storages.values())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_snapshot_brings_the_state_back_to_the_bit(kind):
    model = model_of(kind)
    ids = builders.tokens(2, 41)
    _, cache = read(model, ids[:, :17])
    saved, tokens = cache.snapshot(), cache.tokens
    first, _ = read(model, ids[:, 17:], cache)
    read(model, builders.tokens(2, 30, seed=8), cache)
    cache.restore(saved)
    assert cache.tokens == tokens
    again, _ = read(model, ids[:, 17:], cache)
    assert torch.equal(first, again)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_reordered_rows_go_on_as_the_rows_they_came_from(kind):
    model = model_of(kind)
    ids, more = builders.tokens(3, 19), builders.tokens(3, 11, seed=9)
    _, cache = read(model, ids)
    order = torch.tensor([2, 0, 2])
    cache.reorder_cache(order)
    out, _ = read(model, more, cache)
    for row, source in enumerate(order.tolist()):
        alone, _ = read(model, torch.cat([ids[source], more[row]])[None])
        assert_near(out[row], alone[0, 19:], 1e-11)


@torch.no_grad()
def test_repeated_and_selected_rows():
    model, ids = model_of(), builders.tokens(2, 19)
    _, cache = read(model, ids)
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    cache.batch_select_indices(torch.tensor([3, 1]))
    alone = model.new_cache()
    read(model, ids, alone)
    assert_same_state(cache.state, 0, alone.state, 1, model.plan)
    assert_same_state(cache.state, 1, alone.state, 0, model.plan)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_reset_row_starts_anew_and_leaves_the_others_alone(kind):
    model = model_of(kind)
    ids, more = builders.tokens(3, 19), builders.tokens(3, 14, seed=9)
    _, cache = read(model, ids)
    cache.reset([1])
    out, _ = read(model, more, cache)
    for row in range(3):
        text = more[row] if row == 1 else torch.cat([ids[row], more[row]])
        alone, own = read(model, text[None])
        assert_near(out[row], alone[0, -14:], 1e-11)
        assert_same_state(cache.state, row, own.state, 0, model.plan, 1e-11)


@torch.no_grad()
def test_a_full_reset_forgets_everything():
    """A learned start is not zero: after a reset the memory must stand at the start again."""
    model, ids = model_of("momentum"), builders.tokens(2, 33)
    fresh, cache = read(model, ids)
    for rows in (None, [0, 1]):
        cache.reset(rows)
        again, _ = read(model, ids, cache)
        assert_near(again, fresh, 1e-11)


@torch.no_grad()
def test_rolling_back_is_refused_with_the_way_out():
    model = model_of()
    _, cache = read(model, builders.tokens(1, 9))
    assert not cache.is_croppable
    cache.crop(0)
    with pytest.raises(ValueError, match=r"cannot be cropped; take cache.snapshot\(\) first"):
        cache.crop(3)
    with pytest.raises(ValueError, match="cannot be cropped"):
        cache.crop(-1)


@torch.no_grad()
def test_a_cache_of_another_batch_or_kind_is_refused():
    model = model_of()
    _, cache = read(model, builders.tokens(2, 9))
    with pytest.raises(ValueError, match="the cache holds 2 rows; the input has 3"):
        model(builders.tokens(3, 1), cache=cache)
    with pytest.raises(ValueError, match=r"cache is a DynamicCache; this model needs the one of model.new_cache\(\)"):
        model(builders.tokens(2, 1), cache=DynamicCache())


@torch.no_grad()
def test_forward_leaves_the_model_and_the_snapshot_untouched():
    model = model_of("muon")
    before = {n: t.clone() for n, t in model.state_dict().items()}
    _, cache = read(model, builders.tokens(2, 21))
    saved = cache.snapshot()[0].clone()
    read(model, builders.tokens(2, 21, seed=4), cache.__class__(model.plan))
    held = cache.snapshot()[0]
    read(model, builders.tokens(2, 21, seed=5), cache)
    for row in range(2):
        assert_same_state(held, row, saved, row, model.plan, 0.0)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)
