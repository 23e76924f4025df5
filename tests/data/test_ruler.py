"""RULER against its published definitions: counts, places of answers, lengths, and the score of known ones."""

import re
from collections import Counter

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.data.comprehension import Question
from anchorlm.data.filler import NOISE
from anchorlm.data.ruler import GENERATED, TASKS, Fitter, TooShort, World, aggregate, make, niah, score
from anchorlm.data.ruler.qa import Library
from anchorlm.data.ruler.words import ADJECTIVES, NOUNS, Essay, listed_words, names, packaged_essay
from small import char_tokenizer

TOKENIZER = char_tokenizer()
QUESTIONS = [
    Question(f"What is hidden in box {i}?", (f"thing{i}", f"a thing{i}"), (f"Box {i} holds thing{i}.",),
             tuple(f"Box {j} of row {i} is empty." for j in range(20)))
    for i in range(8)
]  # fmt: skip
WORLD = World(packaged_essay(), {"qa_1": Library(QUESTIONS), "qa_2": Library(QUESTIONS)})
LENGTH = 3000  # one token a byte


def samples(task, count=2, length=LENGTH, seed=0):
    return make(task, length, count, Fitter(TOKENIZER), WORLD, seed)


def text_of(sample):
    return TOKENIZER.decode(sample.ids.tolist())


def test_there_are_13_tasks():
    assert list(TASKS) == [
        *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
        *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
    ]
    assert set(TASKS) - set(GENERATED) == {"qa_1", "qa_2"}
    assert [TASKS[name].tokens for name in ("niah_single_1", "vt", "cwe", "fwe", "qa_1")] == [128, 30, 120, 50, 32]


@pytest.mark.parametrize("task", TASKS)
def test_every_sample_fits_and_is_nearly_full(task):
    for sample in samples(task):
        used = len(sample.ids) + sample.room
        assert used <= LENGTH
        assert used > LENGTH - 400 or task.startswith("qa")
        assert sample.room >= max(len(answer) for answer in sample.answers)


@pytest.mark.parametrize("task", TASKS)
def test_samples_depend_on_seed_and_index_alone(task):
    few, many, other = samples(task, 1), samples(task, 3), samples(task, 1, seed=1)
    assert few[0].digest == many[0].digest != other[0].digest
    assert len({sample.digest for sample in many}) == 3


NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for (\S+) is: (\S+)\.")


@pytest.mark.parametrize(
    ("task", "keys", "values", "asked"),
    [("niah_single_1", 1, 1, 1), ("niah_single_2", 1, 1, 1), ("niah_single_3", 1, 1, 1), ("niah_multikey_1", 4, 1, 1),
     ("niah_multivalue", 1, 4, 1), ("niah_multiquery", 4, 1, 4)],
)  # fmt: skip
def test_needles_are_as_many_as_published(task, keys, values, asked):
    for sample in samples(task, 3):
        text = text_of(sample)
        found = NEEDLE.findall(text)
        assert len(found) == keys * values and len({key for _, key, _ in found}) == keys
        query = text.rpartition("What ")[2]
        named = [key for _, key, _ in found if key in query]
        assert len(set(named)) == asked
        assert sorted(value for _, key, value in found if key in query) == sorted(sample.answers)
        assert all(text.count(answer) == 1 for answer in sample.answers)
        kind = r"\d{7}" if task != "niah_single_3" else r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-.{12}"
        assert all(re.fullmatch(kind, answer) for answer in sample.answers)
        assert text.endswith(" mentioned in the provided text " + ("is" if len(sample.answers) == 1 else "are"))


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3"])
def test_a_haystack_of_needles_has_one_that_is_asked_for(task):
    for sample in samples(task, 3):
        text = text_of(sample)
        found = NEEDLE.findall(text)
        assert len(found) == sample.facts["needles"] > 10
        assert len({key for _, key, _ in found}) == len({value for _, _, value in found}) == len(found)
        asked = re.search(r"for (\S+) mentioned", text).group(1)
        assert sample.answers == tuple(value for _, key, value in found if key == asked)


def test_needles_stand_at_every_depth():
    depths = [text_of(s).index("One of the") / len(s.ids) for s in samples("niah_single_2", 40)]
    assert min(depths) < 0.2 and max(depths) > 0.7 and 0.3 < np.mean(depths) < 0.7
    lines = [text_of(s).index("One of the") / len(s.ids) for s in samples("niah_single_1", 40)]
    assert min(lines) < 0.2 and max(lines) > 0.7


@pytest.mark.parametrize("length", [900, LENGTH])
def test_a_chain_of_four_hops(length):
    for sample in samples("vt", 3, length):
        text = text_of(sample)
        asked = text.rpartition("Memorize")[2]
        assert text.count("Memorize") == (2 if length >= 1024 else 1) and sample.facts["example"] == (length >= 1024)
        first = re.search(r"VAR ([A-Z]{5}) = (\d{5})", asked)
        chain = [first.group(1)]
        places = [first.start()]
        while follows := re.search(rf"VAR ([A-Z]{{5}}) = VAR {chain[-1]}", asked):
            chain.append(follows.group(1))
            places.append(follows.start())
        assert tuple(chain) == sample.answers and len(set(chain)) == 5 and places == sorted(places)
        assert f"5 variables are assigned the value {first.group(2)}" in asked
        assert NOISE[0] in asked


@pytest.mark.parametrize(("length", "often", "seldom", "example"), [(9000, 30, 3, True), (LENGTH, 6, 1, True)])
def test_common_words_stand_as_often_as_published(length, often, seldom, example):
    for sample in samples("cwe", 2, length):
        lists = text_of(sample).split("Below is a numbered list of words.")[1:]
        assert len(lists) == 1 + example
        entries = re.findall(r"(\d+)\. (\S+)", lists[-1].partition("Question:")[0])
        assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
        counts = Counter(word for _, word in entries)
        common = [word for word, count in counts.items() if count == often]
        assert sorted(common) == sorted(sample.answers) and len(common) == 10
        assert {count for word, count in counts.items() if word not in common} == {seldom}
        assert not any(answer in word for answer in common for word in counts if word != answer)


def test_frequent_words_follow_the_zeta_distribution():
    for sample in samples("fwe", 2):
        text = text_of(sample).partition("coded words. ")[2].partition("\nQuestion")[0].split()
        ranked = Counter(text).most_common()
        assert ranked[0][0] == "...."
        assert tuple(word for word, _ in ranked[1:4]) == sample.answers
        assert ranked[3][1] > ranked[4][1]
        assert all(re.fullmatch("[a-z]{6}", word) for word in sample.answers)
    assert aggregate.frequencies(6, 1000) == [607, 151, 67, 37, 24, 16]
    assert all(f[3] > f[4] and f[1] > f[2] > f[3] for f in (aggregate.frequencies(8, n) for n in range(53, 5000)))


def test_documents_that_answer_are_there_and_the_nearest_others_first():
    for sample in samples("qa_1", 3, 1500):
        text, question = text_of(sample), QUESTIONS[sample.facts["question"]]
        assert question.gold[0] in text and question.question in text and text.endswith("Answer:")
        numbers = [int(n) for n in re.findall(r"Document (\d+):", text)]
        assert numbers == list(range(1, sample.facts["documents"] + 1))
        row = f"of row {sample.facts['question']}"
        assert text.count(row) == min(len(numbers) - 1, 20)


def test_published_scores():
    answers = ("1234567", "7654321")
    assert score("niah_multivalue", " 1234567 and\x007654321.", answers) == 1.0
    assert score("niah_multivalue", "7654321", answers) == 0.5
    assert score("vt", "abcde XYZZY", ("ABCDE", "XYZZY", "QQQQQ", "RRRRR")) == 0.5
    assert score("qa_1", "It is DENVER broncos.", ("Denver Broncos", "the Broncos team")) == 1.0
    assert score("qa_2", "no idea", ("yes",)) == 0.0


def test_too_short_says_the_least_length_that_works():
    for task in TASKS:
        with pytest.raises(TooShort, match=f"task {task} needs at least") as error:
            samples(task, 1, 256)
        assert len(samples(task, 1, error.value.needed)) == 1
        with pytest.raises(TooShort):
            samples(task, 1, error.value.needed - 1)


def test_an_answer_longer_than_what_may_be_written():
    with pytest.raises(UserError, match="niah_single_1: the answer takes 8 tokens, and ruler.answer_tokens lets 3"):
        make("niah_single_1", LENGTH, 1, Fitter(TOKENIZER, answer_tokens=3), WORLD)
    assert make("niah_single_1", LENGTH, 1, Fitter(TOKENIZER, answer_tokens=20), WORLD)[0].room == 20


def test_a_tokenizer_with_bos_puts_it_first_once():
    sample = make("vt", LENGTH, 1, Fitter(char_tokenizer(bos=True)), WORLD)[0]
    assert sample.ids[0] == 257 and (sample.ids == 257).sum() == 1


def test_prose_never_ends_and_is_cut_at_sentences():
    essay = Essay("One two. Three four five! Six", "x")
    assert essay.sentences(0, 6) == ["One two.", "Three four five!", "Six"]
    assert essay.sentences(5, 7) == ["Six One two.", "Three four five!", "Six"]
    assert {essay.begin(np.random.default_rng(i)) for i in range(20)} == {0, 2, 5}


def test_names_and_words_are_many_and_different():
    rng = np.random.default_rng(0)
    assert len(set(ADJECTIVES)) == len(ADJECTIVES) and len(set(NOUNS)) == len(NOUNS)
    few, many = names(500, rng), names(12_000, rng)
    assert len(set(few)) == 500 and all(name.count("-") == 1 for name in few)
    assert len(set(many)) == 12_000
    assert len(listed_words()) > 3000 and niah.SETTINGS["niah_multikey_3"].key == "uuids"
