"""Generated recall rows: exact, answerable, weighted, broad, and never worded as in evaluation."""

import re

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.data import Document, TokenStore, wordings
from anchorlm.data.needles import HELD_OUT_TEMPLATES, KEYS, TRAIN_TEMPLATES, Needles, NeedleSource
from anchorlm.data.needles import WORDS as NEEDLE_WORDS
from anchorlm.data.recall import RecallSource
from anchorlm.data.wordings import DRAWS, WORDINGS
from small import char_tokenizer

TOKENIZER = char_tokenizer()
TEXT = "The ship lay still. Nobody on the quay spoke a word. "
STORE = TokenStore.from_documents([Document("a", TEXT * 60), Document("b", TEXT * 9)], TOKENIZER)


def rows(count, length=1500, store=STORE, weight=5.0, end=1.0):
    source = RecallSource(store, TOKENIZER, length, weight, end)
    return [source.sequence(i, np.random.default_rng([7, i])) for i in range(count)]


def stated(text, filler=TEXT):
    """The fact sentences of the row's text: what is left of it without the filler."""
    return [s for s in re.split(r"(?<=\.) ", text) if s.strip() and s.strip() not in filler]


def spans(row):
    """Begin and end of each run of weighted tokens."""
    marked = np.flatnonzero(np.diff(np.r_[False, row.weights > 1, False].astype(int)))
    return marked.reshape(-1, 2).tolist()


def test_rows_are_full_and_start_once():
    for row in rows(20):
        assert len(row.ids) == 1500 and row.mask.all() and np.flatnonzero(row.starts).tolist() == [0]
        assert set(np.unique(row.weights)) == {1.0, 5.0}


def test_every_answer_follows_from_the_one_fact_that_its_cue_asks_for():
    """A reader with patterns alone, which has only the text before the cue, says every answer and no other."""
    asked = 0
    for row in rows(30):
        text = TOKENIZER.decode(row.ids.tolist())
        for begin, end in spans(row):
            assert {text[begin:end].strip()} == found_by_pattern(text[:begin])
            asked += 1
    assert asked > 100


def one_of(names):
    return f"(?:{'|'.join(names)})"


KEYS_OF = {
    "city": one_of(wordings.CITIES),
    "person": one_of(wordings.FIRST) + " " + one_of(wordings.LAST),
    "object": f"(?:T|t)he {one_of(wordings.LOOKS)} {one_of(wordings.THINGS)}",
    "project": f"Project {one_of(wordings.TITLES)}",
}


def found_by_pattern(before):
    """The values of all facts, in the text before a cue, about the key that the cue names."""
    values = set()
    for wording in WORDINGS:
        for cue in wording.cues:
            asked = re.search(pattern(cue, KEYS_OF[wording.key]) + "$", before)
            if asked:
                fact = pattern(wording.fact, re.escape(asked["key"]), r".{1,30}?")
                values |= {found["value"] for found in re.finditer(fact, before[: asked.start()], re.IGNORECASE)}
    return values


def pattern(sentence, key, value=""):
    """A sentence as a regular expression; its first letter may be a capital."""
    text = re.escape(sentence).replace(r"\{key\}", f"(?P<key>{key})").replace(r"\{value\}", f"(?P<value>{value})")
    return text if text.startswith("(") else f"(?i:{text[0]}){text[1:]}"


def test_facts_lie_all_over_the_row_and_keys_are_not_asked_twice():
    depths = []
    for row in rows(40, length=3000):
        text = TOKENIZER.decode(row.ids.tolist())
        end = spans(row)[0][0]
        places = [text.find(s.strip()) for s in stated(text[:end]) if s.strip() in text]
        depths += [p / end for p in places if p >= 0]
    assert min(depths) < 0.1 and max(depths) > 0.8 and 0.3 < np.mean(depths) < 0.7


def test_rows_are_a_function_of_the_generator():
    again = rows(3)
    for a, b in zip(rows(3), again, strict=True):
        assert np.array_equal(a.ids, b.ids) and np.array_equal(a.weights, b.weights)
    assert not np.array_equal(again[0].ids, again[1].ids)


def test_weight_one_is_no_weight():
    assert rows(1, weight=1.0)[0].weights is None
    assert np.array_equal(rows(1, weight=1.0)[0].ids, rows(1)[0].ids)


def test_the_token_after_an_answer_has_a_weight_of_its_own():
    for plain, ended in zip(rows(20), rows(20, end=3.0), strict=True):
        wanted = plain.weights.copy()
        stops = np.array([stop for _, stop in spans(plain)])
        wanted[stops[stops < len(wanted)]] = 3.0
        assert np.array_equal(ended.ids, plain.ids) and np.array_equal(ended.weights, wanted)
    assert {3.0} < set(np.unique(rows(1, weight=1.0, end=3.0)[0].weights))


def test_too_short_a_row_or_text_is_one_line():
    with pytest.raises(UserError, match=r"data.length is 40; a recall row needs about \d+ tokens"):
        rows(1, length=40)
    with pytest.raises(UserError, match="data has .* tokens; a recall row with .* needs more"):
        rows(1, length=9000)


def test_a_needle_row_weighs_its_answer():
    source = NeedleSource(Needles(STORE, TOKENIZER, templates="train"), 400, 3.0)
    row = source.sequence(0, np.random.default_rng(0))
    (begin, end), text = spans(row)[0], TOKENIZER.decode(row.ids.tolist())
    assert re.fullmatch(r" ?\d{7}", text[begin:end]) and text[:begin].count(text[begin:end].strip()) == 1


def words(text):
    return re.findall(r"[a-z]+", text.replace("{key}", "").replace("{value}", "").lower())


COMMON = set(
    words("the a an of to in on at is are was you your for by with as it its what where when who how do has have")
)


def content(*texts):
    return {word for text in texts for word in words(text)} - COMMON


def grams(text, n=4):
    found = re.findall(r"[a-z{}]+", text.lower())
    return {tuple(found[i : i + n]) for i in range(len(found) - n + 1)}


def test_wordings_are_broad():
    assert len({w.fact for w in WORDINGS}) == len(WORDINGS) >= 34
    assert {w.key for w in WORDINGS} == {"city", "person", "object", "project"}
    assert {w.value for w in WORDINGS} == {"number", "word", "name", "date", "code", "colour", "place"}
    assert all(len(set(w.cues)) >= 2 for w in WORDINGS)


@pytest.mark.parametrize("held", HELD_OUT_TEMPLATES, ids=lambda t: t.name)
def test_no_wording_resembles_a_held_out_one(held):
    """Not one word of meaning in common, and no four words in a row."""
    for wording in WORDINGS:
        texts = (wording.fact, *wording.cues)
        assert not content(*texts) & content(held.fact, held.cue), wording
        assert not any(grams(t) & (grams(held.fact) | grams(held.cue)) for t in texts), wording


def test_the_check_sees_a_resemblance():
    held = HELD_OUT_TEMPLATES[0]
    assert content("The safe of {key} holds {value}.") & content(held.fact, held.cue)
    assert not content(TRAIN_TEMPLATES[0].fact) & content(held.fact, held.cue)


def test_keys_and_values_are_not_those_of_evaluation():
    assert not set(wordings.CITIES) & set(KEYS)
    assert not set(wordings.WORDS) & set(NEEDLE_WORDS)
    rng = np.random.default_rng(0)
    numbers = [DRAWS["number"](rng) for _ in range(400)]
    assert {len(n) for n in numbers} == {2, 3, 4, 5, 6, 8}


def test_codes_and_dates_have_several_forms():
    rng = np.random.default_rng(0)
    codes = [DRAWS["code"](rng) for _ in range(200)]
    forms = (r"[A-Z]{1,3}-\d{2,4}", r"\d{2,4}-[A-Z]{1,3}", r"[A-Z]{1,3}\d{2,4}")
    assert all(any(re.fullmatch(f, code) for code in codes) for f in forms)
    assert all(any(re.fullmatch(f, code) for f in forms) for code in codes)
    dates = {re.sub(r"[A-Z][a-z]+", "M", re.sub(r"\d+", "9", DRAWS["date"](rng))) for _ in range(100)}
    assert dates == {"9 M 9", "M 9, 9", "9-9-9"}
