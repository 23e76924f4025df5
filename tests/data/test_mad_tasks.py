"""The MAD generators against the published definitions: counts, vocabularies, scored positions, chance levels."""

from itertools import groupby

import numpy as np
import pytest

from anchorlm.core import UserError
from anchorlm.data.mad import (
    IGNORE,
    TASKS,
    Compression,
    FuzzyRecall,
    Memorisation,
    NoisyRecall,
    Recall,
    SelectiveCopying,
)

ROWS = 24


def rows_of(task, train=True, rows=ROWS, seed=0):
    made = task.make(np.random.default_rng(seed), rows, train)
    assert all(array.shape == made.inputs.shape and len(array) == rows for array in made)
    assert made.inputs.min() >= 0 and made.inputs.max() < task.vocab
    return [tuple(array[row].tolist() for array in made) for row in range(rows)]


def whole(inputs, targets):
    """The sequence whose shifted halves input and target are."""
    assert inputs[1:] == targets[:-1]
    return [*inputs, targets[-1]]


def asked(sequence, answers, pairs):
    """Answers as the definition has them, by a loop over (place of the key, its length, key, value)."""
    known, expected = {}, [IGNORE] * len(sequence)
    for at, key, value in pairs:
        assert known.setdefault(key, value) == value, "a key has one value in a row"
        if key in known and any(k == key and p < at for p, k, _ in pairs):
            expected[at + len(key) : at + len(key) + len(value)] = value
    assert [IGNORE, *answers] == expected


@pytest.mark.parametrize("task, length, vocab", [
    (Recall(), 128, 16), (NoisyRecall(), 128, 32), (FuzzyRecall(), 128, 16), (Memorisation(), 32, 256),
    (SelectiveCopying(), 256, 16), (Compression(), 32, 16),
])  # fmt: skip
def test_the_published_baseline_is_the_default(task, length, vocab):
    assert (task.length, task.vocab) == (length, vocab)
    rows_of(task)


@pytest.mark.parametrize("task", [Recall(), NoisyRecall(), NoisyRecall(noise=0.8), Recall(length=4, vocab=4)])
def test_recall(task):
    keys, values = task.split()
    noisy = 0
    for inputs, targets, answers in rows_of(task):
        sequence = whole(inputs, targets)
        assert len(sequence) == task.length
        pairs = []
        for at in range(0, task.length, 2):
            key, value = sequence[at : at + 2]
            if key < keys:
                assert keys <= value < keys + values
                pairs.append((at, (key,), (value,)))
            else:
                assert min(key, value) >= keys + values, "noise comes in twos, from a vocabulary of its own"
                noisy += 1
        asked(sequence, answers, pairs)
        assert answers[-1] == sequence[-1], "the last pair is always asked for"
    assert noisy / (ROWS * task.length / 2) == pytest.approx(task.noise, abs=0.05)


def test_vocabulary_split():
    assert Recall().split() == (8, 8) and NoisyRecall().split() == (8, 8)
    assert FuzzyRecall().split() == (7, 8)
    assert len(Memorisation().facts()) == 127


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("task", [FuzzyRecall(), FuzzyRecall(key=2, value=1, length=7, vocab=5)])
def test_fuzzy_recall(task, train):
    keys, _ = task.split()
    sizes = {"key": set(), "value": set()}
    for inputs, targets, answers in rows_of(task, train):
        sequence = whole(inputs, targets)
        pads = next(i for i, token in enumerate(sequence) if token != task.vocab - 1)
        assert pads >= 1 and task.vocab - 1 not in sequence[pads:] and len(sequence) == task.length + 1
        runs = [tuple(run) for _, run in groupby(sequence[pads:], key=lambda token: token < keys)]
        pairs, at = [], pads
        for key, value in zip(runs[::2], runs[1::2], strict=True):
            pairs.append((at, key, value))
            at += len(key) + len(value)
            for name, motif in (("key", key), ("value", value)):
                assert len(set(motif)) == len(motif) <= getattr(task, name)
                sizes[name].add(len(motif))
        asked(sequence, answers, pairs)
        assert pairs[-1][1] in [key for _, key, _ in pairs[:-1]], "the last key was shown"
    assert sizes["value"] == set(range(1, task.value + 1))
    assert sizes["key"] == (set(range(1, task.key + 1)) if train else {task.key})


def test_memorisation_has_the_same_facts_in_every_row():
    task = Memorisation(vocab=64)
    facts = task.facts()
    assert len(set(facts.tolist())) == len(facts) == 31 and facts.min() >= 31 and facts.max() < 63
    for seed in (0, 1):
        for inputs, targets, answers in rows_of(task, seed=seed):
            assert set(inputs[1::2]) == {63} and targets == answers
            assert answers[::2] == [IGNORE] * 16 and answers[1::2] == facts[inputs[::2]].tolist()


def test_selective_copying_keeps_the_order():
    task = SelectiveCopying(length=40, copy_tokens=5)
    blank, ask = 14, 15
    for inputs, targets, answers in rows_of(task):
        data, rest = inputs[:34], inputs[34:]
        tokens = [token for token in data if token != blank]
        assert rest == [ask, *[blank] * 5] and ask not in data and data.count(blank) == 40 - 2 * 5 - 1
        assert answers == targets == [*[IGNORE] * 35, *tokens]
        assert data[-1] != blank, "the last token stands right before the question, as published"


def test_compression_asks_for_every_token_but_the_last():
    for inputs, targets, answers in rows_of(Compression()):
        assert inputs == targets and 15 not in inputs[:-1]
        assert answers == [*inputs[:-1], IGNORE] and inputs[-1] == 15


@pytest.mark.parametrize("name", TASKS)
def test_chance_is_what_a_guess_from_the_vocabulary_gets(name):
    """A guess that knows which tokens an answer is made of, and within one value those that stand before it."""
    task, shares = TASKS[name](), []
    found = rows_of(task, train=False, rows=200)
    vocabulary = {token for _, _, answers in found for token in answers} - {IGNORE}
    for _, _, answers in found:
        before = []
        for token in answers:
            before = [] if token == IGNORE or name != "fuzzy-recall" else [*before, token]
            if token != IGNORE:
                shares.append(1 / len(vocabulary - set(before[:-1])))
    assert task.chance() == pytest.approx(np.mean(shares), rel=0.03)


@pytest.mark.parametrize("name", TASKS)
def test_rows_follow_from_the_seed(name):
    task = TASKS[name]()
    assert rows_of(task) == rows_of(task) and rows_of(task) != rows_of(task, seed=1)


@pytest.mark.parametrize("name, values, expected", [
    ("in-context-recall", {"length": 2}, "length is 2; at least 4"),
    ("in-context-recall", {"length": 9}, "length is 9; it must be even"),
    ("noisy-recall", {"vocab": 19}, "vocab is 19; at least 20"),
    ("noisy-recall", {"noise_vocab": 0}, "noise_vocab is 0; at least 1"),
    ("fuzzy-recall", {"length": 12}, "length is 12; at least 13"),
    ("fuzzy-recall", {"vocab": 6}, "vocab is 6; at least 7"),
    ("selective-copying", {"length": 33}, "length is 33; at least 34"),
    ("memorisation", {"vocab": 4}, "vocab is 4; at least 5"),
    ("compression", {"length": 1}, "length is 1; at least 2"),
])  # fmt: skip
def test_too_small(name, values, expected):
    with pytest.raises(UserError, match=f"task {name}: {expected}"):
        TASKS[name](**values).check(name)
    least = TASKS[name]().least()
    assert rows_of(TASKS[name](**(values | least)).check(name))
