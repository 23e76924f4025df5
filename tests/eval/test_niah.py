"""Needles: prompts hold fact and cue at an exact length; answers are scored by what is written and by token."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anchorlm.convert.attach import convert
from anchorlm.core import UserError
from anchorlm.data import Document, TokenStore, batches
from anchorlm.data.needles import HELD_OUT_TEMPLATES, KINDS, TRAIN_TEMPLATES, Needles, NeedleSource
from anchorlm.eval import niah as module
from anchorlm.eval.niah import DEPTHS, TEXTS, ask, ask_in_turn, matches, niah, niah_cells, prompts, text_of, texts_of
from small import char_tokenizer, tiny_llama

TEXT = "A quiet morning. The boats went out. Nobody spoke of the storm. " * 40
TOKENIZER = char_tokenizer()
STORE = TokenStore.from_documents([Document("a", TEXT), Document("b", TEXT[:500])], TOKENIZER)


class Finder(torch.nn.Module):
    """A perfect reader: it finds the needle with a pattern in all it has read, and says it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = SimpleNamespace(max_position_embeddings=10_000)

    def forward(self, input_ids, cache=None, use_cache=True, logits_to_keep=0):
        cache = list(cache) if cache is not None else [[] for _ in input_ids]
        logits = torch.zeros(*input_ids.shape, 258)
        for row, ids in enumerate(input_ids.tolist()):
            for t, token in enumerate(ids):
                cache[row] = [*cache[row], token]
                logits[row, t, self.next(cache[row])] = 1
        return SimpleNamespace(logits=logits[:, -logits_to_keep:], cache=cache)

    def next(self, ids):
        text = TOKENIZER.decode(ids)
        value = re.search(r"\d{7}", text).group() if re.search(r"\d{7}", text) else ""
        said = text[text.rfind("\n\n") :]
        begun = re.search(r" (\d*)$", said)
        answer = TOKENIZER(value[len(begun.group(1)) :] + "." if begun else " ")["input_ids"]
        return answer[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("templates", ["train", "heldout"])
def test_prompts_have_the_exact_length_and_hold_the_needle(kind, templates):
    needles = Needles(STORE, TOKENIZER, kind, templates)
    for depth in (0.0, 0.5, 1.0):
        for prompt in prompts(needles, 600, depth, 4, seed=1):
            assert len(prompt.ids) == 600
            text = TOKENIZER.decode(prompt.ids.tolist())
            assert text.count(prompt.answer) == 1
            assert abs(prompt.depth - depth) < 0.1
            before = text[: text.index(prompt.answer)]
            assert depth in (0.0,) or before.count(".") >= 1
            assert TOKENIZER.decode(prompt.answer_ids.tolist()).strip() == prompt.answer
            assert prompt.counted.sum() == len(prompt.answer)


def test_train_and_held_out_wordings_are_apart():
    names = [{t.name for t in group} for group in (TRAIN_TEMPLATES, HELD_OUT_TEMPLATES)]
    assert not names[0] & names[1]
    assert not {t.fact for t in TRAIN_TEMPLATES} & {t.fact for t in HELD_OUT_TEMPLATES}
    assert all("{key}" in t.cue and "{value}" not in t.cue for t in TRAIN_TEMPLATES + HELD_OUT_TEMPLATES)


def test_the_same_prompts_for_every_model_and_a_larger_n():
    needles = Needles(STORE, TOKENIZER)
    few, many = prompts(needles, 400, 0.5, 2, 0), prompts(needles, 400, 0.5, 4, 0)
    assert all(np.array_equal(a.ids, b.ids) for a, b in zip(few, many[:2], strict=True))
    assert not np.array_equal(many[2].ids, prompts(needles, 400, 0.5, 4, 1)[2].ids)


def test_a_perfect_reader_gets_all_and_a_random_one_gets_none():
    needles = Needles(STORE, TOKENIZER)
    perfect = niah(Finder(), needles, [300], (0.2, 0.8), n=3, batch=2)
    assert perfect["value"] == 1.0 and perfect["digits"]["value"] == 1.0 and perfect["n"] == 6
    assert perfect["interval"][1] == 1.0 and perfect["interval"][0] < 1.0
    untrained = niah(tiny_llama(), needles, [300], (0.5,), n=3, batch=3)
    assert untrained["value"] == 0.0 and untrained["digits"]["value"] < 0.5


def test_any_batch_and_block_give_one_answer():
    needles = Needles(STORE, TOKENIZER)
    model = tiny_llama()
    sizes = ((1, 512), (4, 64), (3, 7), (1, 7))
    cells = [niah_cells(model, needles, 300, (0.2, 0.5, 0.9), 4, batch=b, block=k) for b, k in sizes]
    assert all(other == cells[0] for other in cells)


def in_one_text(needles, length, n=4, text=0):
    places = [(d, s) for d in DEPTHS for s in range(n) if text_of(d, s) == text]
    return [prompts(needles, length, d, n, 0)[s] for d, s in places]


def test_needles_of_one_text_begin_alike_and_have_facts_of_their_own():
    needles = Needles(STORE, TOKENIZER)
    group = in_one_text(needles, 600)
    assert len(group) == len(DEPTHS) and len({prompt.answer for prompt in group}) == len(DEPTHS)
    for a in group:
        for b in group:
            common = min(a.shared, b.shared)
            assert np.array_equal(a.ids[:common], b.ids[:common])
        assert TOKENIZER.decode(a.ids[a.shared :].tolist()).startswith(" ")
    other = in_one_text(needles, 600, text=1)
    assert not np.array_equal(group[-1].ids[:100], other[-1].ids[:100])


@pytest.mark.parametrize(("n", "count"), [(1, 4), (2, 4), (4, 4), (7, 7)])
def test_few_needles_lie_in_several_texts(n, count):
    assert texts_of(DEPTHS, n) == list(range(count)) and count >= TEXTS
    assert all(len({text_of(depth, sample) for sample in range(n)}) == n for depth in DEPTHS)


SLOTS = {
    "fast": {"write": 0, "read": [0, 1], "chunk": 16},
    "k1": {"rule": "kept", "write": 1, "chunk": 8, "options": {"tokens": 24, "width": 4}},
}
HYBRID = {"attention": {"kind": "window", "window": 16, "sinks": 2}, "slots": SLOTS}


@pytest.mark.parametrize("plan", [None, HYBRID, {"attention": {"kind": "full"}}], ids=["plain", "memory", "full"])
def test_a_shared_beginning_is_read_once_and_changes_nothing(plan, monkeypatch):
    model = tiny_llama(layers=2) if plan is None else awake(convert(tiny_llama(layers=2), plan).eval())
    group, read, seen = in_one_text(Needles(STORE, TOKENIZER), 400)[::-1], [], []
    real, write = module.prefill, module.greedy
    monkeypatch.setattr(module, "prefill", lambda m, ids, *rest: (read.append(ids.shape[1]), real(m, ids, *rest))[1])
    monkeypatch.setattr(module, "greedy", lambda m, logits, *rest: (seen.append(logits), write(m, logits, *rest))[1])
    alone = [ask(model, [prompt], TOKENIZER)[0] for prompt in group]
    whole, kept = sum(read), list(seen)
    read.clear(), seen.clear()
    assert ask_in_turn(model, group, TOKENIZER, block=64) == alone
    torch.testing.assert_close(torch.cat(seen[::-1]), torch.cat(kept), rtol=1e-4, atol=1e-4)
    after = sum(400 - prompt.shared for prompt in group)  # what follows a fact is read for each needle
    assert whole == 5 * 400 and sum(read) == max(prompt.shared for prompt in group) + after < 0.8 * whole


def awake(model):
    """Gates that start at zero would hide a memory that was not carried over."""
    torch.manual_seed(0)
    for parameter in model.memory_parameters().values():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def test_beyond_the_positions_is_said_not_run():
    result = niah(tiny_llama(max_positions=256), Needles(STORE, TOKENIZER), [400], (0.5,), n=2)
    assert result["value"] is None
    assert result["note"] == "beyond the 256 positions of the base model"


def test_training_rows_hold_fact_and_answer():
    source = NeedleSource(Needles(STORE, TOKENIZER, templates="train"), 400)
    batch = next(batches(source, 400, 2, seed=0))
    for ids, mask in zip(batch.input_ids, batch.mask, strict=True):
        text = TOKENIZER.decode(ids[mask].tolist())
        assert re.search(r"(\d{7}).* \1<eos>$", text, re.S)


def test_matches():
    assert matches(" 1234567.", "1234567")
    assert not matches(" 12345678", "1234567")
    assert matches(" _1234567_", "1234567")
    assert matches(' "1234567"', "1234567")
    assert not matches(" x1234567", "1234567")


def test_bad_input():
    with pytest.raises(UserError, match="kind 'numbr' is unknown; did you mean 'number'"):
        Needles(STORE, TOKENIZER, "numbr")
    with pytest.raises(UserError, match="template 'heldot' is unknown; did you mean 'heldout'"):
        Needles(STORE, TOKENIZER, templates="heldot")
    with pytest.raises(UserError, match="needle length 20 is too short"):
        Needles(STORE, TOKENIZER).make(20, 0.5, np.random.default_rng(0))
    with pytest.raises(UserError, match="needs more"):
        Needles(STORE, TOKENIZER).make(100_000, 0.5, np.random.default_rng(0))
