"""transformers' generate on a hybrid: with and without a cache, padded, in beams, and what it must refuse."""

import pytest
import torch
from transformers import DynamicCache

import builders
from builders import SLOT_KINDS, assert_near

WINDOW, CHUNK = 6, 6
PLANS = {kind: ("anchor-f", SLOT_KINDS[kind] | {"gap": True}) for kind in ("default", "lag", "conv", "muon", "delta")}
PLANS |= {"hybrid": ("anchor-hybrid", {}), "swa": ("swa", {})}


def model_of(name="default", **values):
    plan, spec = PLANS[name]
    return builders.hybrid(plan=plan, **spec | values)


def write(model, ids, new=9, **options):
    """The mask is given: else transformers takes every token that equals the pad token for padding."""
    mask = None if ids is None else torch.ones_like(ids)
    return model.generate(
        ids, max_new_tokens=new, pad_token_id=0, **{"do_sample": False, "attention_mask": mask} | options
    )


def left_padded(texts):
    width = max(len(t) for t in texts)
    ids = torch.stack([torch.cat([torch.full((width - len(t),), 9), t]) for t in texts])
    mask = torch.stack([torch.cat([torch.zeros(width - len(t)), torch.ones(len(t))]) for t in texts]).long()
    return ids, mask


@pytest.mark.parametrize("name", PLANS)
def test_greedy_is_the_argmax_of_a_parallel_pass_over_its_own_output(name):
    """Prompts of window - 2 .. window + 2, of two chunks + 1, and far beyond; 3 windows of new tokens."""
    model = model_of(name)
    for length in (1, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2, 2 * CHUNK + 1, 40):
        out = write(model, builders.tokens(2, length), 3 * WINDOW + 1 if length in (1, WINDOW) else 5)
        with torch.no_grad():
            best = model(out).logits[:, length - 1 : -1].argmax(-1)
        assert torch.equal(out[:, length:], best)


@pytest.mark.parametrize("name", PLANS)
def test_the_cache_changes_nothing(name):
    model, ids = model_of(name), builders.tokens(2, 17)
    assert torch.equal(write(model, ids), write(model, ids, use_cache=False))


@pytest.mark.parametrize("name", ["default", "conv", "hybrid"])
def test_a_left_padded_batch_equals_each_text_alone(name):
    """Batch 3, past the window, and no token of it a real pad; a batch of one is padded too."""
    model = model_of(name)
    texts = [builders.tokens(1, n, seed=n)[0] for n in (3, 19, 8)]
    ids, mask = left_padded(texts)
    together = write(model, ids, attention_mask=mask)[:, ids.shape[1] :]
    for row, text in enumerate(texts):
        alone = write(model, text[None])[0, len(text) :]
        assert torch.equal(together[row], alone)
        for pads in (1, WINDOW + 3):
            padded = torch.cat([torch.full((pads,), 9), text])[None]
            keep = (torch.arange(padded.shape[1]) >= pads).long()[None]
            assert torch.equal(write(model, padded, attention_mask=keep)[0, padded.shape[1] :], alone)


@pytest.mark.parametrize("name", ["default", "conv", "muon", "hybrid"])
def test_beams_of_a_padded_batch_equal_beams_of_each_text(name):
    model = model_of(name)
    texts = [builders.tokens(1, n, seed=n)[0] for n in (7, 13)]
    ids, mask = left_padded(texts)
    options = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.0}
    together = write(model, ids, attention_mask=mask, **options)[:, ids.shape[1] :]
    uncached = write(model, ids, attention_mask=mask, use_cache=False, **options)[:, ids.shape[1] :]
    assert torch.equal(together, uncached)
    for row, text in enumerate(texts):
        alone = write(model, text[None], **options)[:, len(text) :]
        assert torch.equal(together[2 * row : 2 * row + 2], alone)
    assert len({tuple(t.tolist()) for t in together}) == 4


def test_beam_scores_are_the_log_likelihoods_of_a_parallel_pass():
    model, ids = model_of(), builders.tokens(2, 9)
    out = write(model, ids, 8, num_beams=4, length_penalty=0.0, output_scores=True, return_dict_in_generate=True)
    with torch.no_grad():
        log = torch.log_softmax(model(out.sequences).logits[:, 8:-1], -1)
    total = log.gather(2, out.sequences[:, 9:, None]).sum((1, 2))
    assert_near(out.sequences_scores.double(), total, 1e-5)


def test_sampling_several_sequences_draws_from_the_right_distribution():
    """With one seed, num_return_sequences draws what as many rows of the same prompt draw."""
    model, ids = model_of(), builders.tokens(1, 9)
    drawn = []
    for given, count in ((ids, 4), (ids.repeat(4, 1), 1)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            drawn.append(write(model, given, do_sample=True, num_return_sequences=count))
    assert torch.equal(*drawn)
    assert len({tuple(row.tolist()) for row in drawn[0]}) == 4


@pytest.mark.parametrize("name", ["default", "lag", "conv", "hybrid"])
def test_a_second_turn_goes_on_from_the_cache(name):
    model, ids = model_of(name), builders.tokens(2, 11)
    cache = model.new_cache()
    first = write(model, ids, cache=cache)
    assert cache.tokens == first.shape[1] - 1
    longer = torch.cat([first, builders.tokens(2, 7, seed=8)], 1)
    assert torch.equal(write(model, longer, cache=cache), write(model, longer))


def test_generating_from_embeddings():
    model, ids = model_of(), builders.tokens(2, 11)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(write(model, None, inputs_embeds=embeds), write(model, ids)[:, 11:])


@pytest.mark.parametrize("options", [{"prompt_lookup_num_tokens": 3}, {"assistant_model": "itself"}], ids=str)
def test_speculation_needs_rolling_back_and_is_refused(options):
    model = model_of()
    options = {"assistant_model": builders.teacher()} if "assistant_model" in options else options
    with pytest.raises(ValueError, match="not supported with stateful models"):
        write(model, builders.tokens(1, 9), **options)


@pytest.mark.parametrize("kind", ["static", "quantized", "offloaded", "sliding_window"])
def test_other_cache_kinds_are_refused(kind):
    with pytest.raises(ValueError, match=f"cache_implementation '{kind}'"):
        write(model_of(), builders.tokens(1, 9), cache_implementation=kind)
    with pytest.raises(ValueError, match="cache is a DynamicCache"):
        write(model_of(), builders.tokens(1, 9), cache=DynamicCache())


def test_a_second_turn_of_a_padded_batch_equals_each_text_alone():
    model = model_of()
    ids, mask = left_padded([builders.tokens(1, n, seed=n)[0] for n in (5, 13)])
    cache = model.new_cache()
    first = write(model, ids, attention_mask=mask, cache=cache)
    longer = torch.cat([first, builders.tokens(2, 5, seed=7)], 1)
    mask = torch.cat([mask, torch.ones(2, longer.shape[1] - mask.shape[1]).long()], 1)
    second = write(model, longer, attention_mask=mask, cache=cache)[:, longer.shape[1] :]
    for row in range(2):
        text = longer[row][mask[row].bool()][None]
        assert torch.equal(second[row], write(model, text)[0, text.shape[1] :])
