"""Continuations scored together are scored as each alone; tokens are cut and divided as lm-evaluation-harness does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlm.core import UserError
from anchorlm.eval.choices import LEAST_SHARED, Pair, PairEncoder, score_pairs, shared_beginning
from hybrids import PLANS, base_folder, make
from small import char_tokenizer, tiny_llama

__all__ = ["base_folder"]
MODEL = tiny_llama()
HEAD = tuple(range(40, 40 + LEAST_SHARED + 5))
SHARING = [
    Pair((*HEAD, 7, 8, 9), (3, 4, 5)),
    Pair((*HEAD, 7, 8, 9), (6,)),
    Pair((*HEAD, 7, 8, 9), (3, 4, 5, 6, 7, 8, 9, 10, 11)),
    Pair((*HEAD, 11), (12, 13)),
    Pair((*HEAD, 7), (3, 4, 5)),
    Pair((*HEAD, 7, 8, 9), (6,)),
]
tokens = st.lists(st.integers(0, 250), min_size=1, max_size=12).map(tuple)


@torch.no_grad()
def alone(model, pair):
    """One full pass over context and continuation, token by token."""
    ids = torch.tensor([[*pair.context, *pair.continuation]])
    logits = model(input_ids=ids).logits[0].double().log_softmax(-1)
    places = range(len(pair.context), ids.shape[1])
    return (
        sum(float(logits[place - 1, ids[0, place]]) for place in places),
        all(int(logits[place - 1].argmax()) == int(ids[0, place]) for place in places),
    )


def same(found, expected):
    assert [right for _, right in found] == [right for _, right in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=2e-4)


@settings(max_examples=25)
@given(st.lists(st.builds(Pair, tokens, tokens), min_size=1, max_size=6), st.integers(1, 9))
def test_any_pairs_are_scored_as_each_alone(pairs, block):
    same(score_pairs(MODEL, pairs, block), [alone(MODEL, pair) for pair in pairs])


@pytest.mark.parametrize("plan", [*PLANS, "full"])
def test_from_a_shared_state_as_alone_whatever_the_plan(plan, base_folder):
    model = make(base_folder, plan) if plan != "full" else MODEL
    same(score_pairs(model, SHARING, 16), [alone(model, pair) for pair in SHARING])
    same(score_pairs(model, SHARING[::-1]), score_pairs(model, SHARING)[::-1])


def test_the_greedy_continuation_is_told(base_folder):
    model = make(base_folder, "anchor")
    context = torch.tensor([SHARING[0].context])
    written = model.generate(context, max_new_tokens=3, do_sample=False, eos_token_id=None)[0, -3:].tolist()
    other = [*written[:2], (written[2] + 1) % 250]
    found = score_pairs(model, [Pair(SHARING[0].context, tuple(ids)) for ids in (written, other)])
    assert [right for _, right in found] == [True, False]


def test_a_shared_beginning_and_each_context_are_read_once(base_folder, monkeypatch):
    model, read = make(base_folder, "anchor"), []
    inner = model.forward
    monkeypatch.setattr(
        model, "forward", lambda *args, **given: read.append(tuple(given["input_ids"].shape)) or inner(*args, **given)
    )
    score_pairs(model, SHARING)
    assert read == [(1, len(HEAD)), (1, 3), (4, 8), (1, 1), (1, 1), (1, 1), (1, 2)]


def test_shared_beginning():
    head = tuple(range(LEAST_SHARED))
    assert shared_beginning([(*head, 1), (*head, 2), (*head, 1, 5)]) == head
    assert shared_beginning([(*head, 1), head]) == ()  # one token less would be shared than is worth it
    assert shared_beginning([(*head, 1)]) == ()
    assert shared_beginning([(*head[1:], 1), (*head[1:], 2)]) == ()


def test_spaces_that_end_the_context_go_with_the_continuation():
    encode = PairEncoder(char_tokenizer())
    text = "ab  cd"
    assert encode("ab ", " cd") == encode("ab", "  cd")
    assert encode("ab ", " cd").continuation == tuple(encode.ids(text)[2:])


def test_what_stands_before_a_text():
    plain, leading = PairEncoder(char_tokenizer()), PairEncoder(char_tokenizer(bos=True))
    assert plain("", "a").context == (256,) and leading("", "a").context == (257,)
    assert plain("b", " a").context == tuple(plain.ids("b"))
    assert leading("b", " a").context == (257, *plain.ids("b"))
    assert leading("b", " a").continuation == tuple(plain.ids(" a"))


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 20))
def test_cut_as_in_lm_evaluation_harness(context, continuation, limit):
    before, after = list(range(context)), list(range(100, 100 + continuation))
    pair = PairEncoder(char_tokenizer(), limit).fit(before, after)
    inputs = (before + after)[-(limit + 1) :][:-1]
    assert [*pair.context, *pair.continuation][:-1] == inputs
    assert pair.cut == (context + continuation > limit + 1)
    assert pair.continuation == tuple(after[-limit:]) and len(pair.context) >= 1


def test_a_choice_without_a_token_is_named():
    with pytest.raises(UserError, match="the choice '' is no token of its own after 'ab'"):
        PairEncoder(char_tokenizer())("ab", "")
