"""Accuracy by its definition, intervals and paired tests with known answers, resume, and what was cut."""

import json
import math

import numpy as np
import pytest
import torch

from anchorlm.data.layouts import Question
from anchorlm.data.questions import TaskSet
from anchorlm.eval import accuracy
from anchorlm.eval.accuracy import compare, measure, summary
from anchorlm.eval.parts import Parts
from anchorlm.eval.table import table
from questions import sets_of, write_all
from small import char_tokenizer, tiny_llama

TOKENIZER = char_tokenizer()


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return sets_of(write_all(tmp_path_factory.mktemp("questions")), "commonsense", "mmlu")


@torch.no_grad()
def slow(model, question):
    """(log-likelihoods, greedy) of every choice, each by one full pass over its bytes."""
    found = []
    for context, continuation in question.pairs():
        ids = [*context.encode(), *continuation.encode()]
        ids = TOKENIZER(context + continuation)["input_ids"]
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        places = range(len(context.encode()), len(ids))
        score = sum(float(logits[place - 1, ids[place]]) for place in places)
        found.append((score, all(int(logits[place - 1].argmax()) == ids[place] for place in places)))
    return found


def test_every_figure_is_the_definition(sets):
    model = tiny_llama(max_positions=4096)
    row = measure(model, TOKENIZER, sets["commonsense"])
    values = []
    for one in sets["commonsense"]:
        scores = [slow(model, question) for question in one.questions]
        task, answers = row["tasks"][one.name], row["answers"][one.name]
        assert [a["scores"] for a in answers] == [pytest.approx([s for s, _ in group], abs=1e-3) for group in scores]
        if one.words:
            assert task["acc"]["value"] == np.mean([group[0][1] for group in scores])
            assert task["perplexity"]["value"] == pytest.approx(math.exp(-np.mean([g[0][0] for g in scores])), rel=1e-3)
        else:
            picked = [max(range(len(group)), key=lambda i: group[i][0]) for group in scores]
            assert task["acc"]["value"] == np.mean([p == q.gold for p, q in zip(picked, one.questions, strict=True)])
        if "acc_norm" in task:
            normed = [
                max(range(len(group)), key=lambda i: group[i][0] / len(question.choices[i]))
                for group, question in zip(scores, one.questions, strict=True)
            ]
            right = [p == q.gold for p, q in zip(normed, one.questions, strict=True)]
            assert task["acc_norm"]["value"] == np.mean(right)
        values.append(task[task["metric"]]["value"])
    assert row["value"] == pytest.approx(np.mean(values)) and row["n"] == 14 and row["truncated"] == 0
    assert "acc_norm" not in row["tasks"]["winogrande"] and row["tasks"]["arc_easy"]["chance"] == (1 / 3 + 1 / 4) / 2


def test_mmlu_is_the_share_of_all_questions(sets):
    row = measure(tiny_llama(max_positions=4096), TOKENIZER, sets["mmlu"], pooled=True)
    hits = [answer["acc"] for answers in row["answers"].values() for answer in answers]
    assert row["value"] == np.mean(hits) and row["n"] == 5 and row["tasks"]["anatomy"]["n"] == 3


def test_contexts_beyond_the_model_are_cut_and_counted(sets):
    row = measure(tiny_llama(max_positions=256), TOKENIZER, sets["mmlu"], pooled=True)
    assert row["truncated"] == row["n"] == 5 and row["tasks"]["anatomy"]["longest"] == 257
    short = measure(tiny_llama(max_positions=256), TOKENIZER, sets["commonsense"])
    assert short["truncated"] == 0 and all(task["longest"] < 257 for task in short["tasks"].values())


def answered(hits, metric="acc"):
    questions = tuple(Question(("a",), ("b", "c"), int(1 - hit)) for hit in hits)
    answers = [{"scores": [0.0, -1.0], "acc": hit, "acc_norm": hit, "tokens": 3, "cut": False} for hit in hits]
    return TaskSet("t", questions, metric), answers


def row_of(hits, pooled=True):
    one, answers = answered(hits)
    return {"model": "m", **summary([one], {"t": answers}, pooled=pooled)}


@pytest.mark.parametrize("pooled", [True, False])
def test_paired_gap_and_test(pooled):
    first, other = row_of([1, 1, 1, 1, 1, 0, 1, 0], pooled), row_of([0, 0, 0, 0, 0, 1, 1, 0], pooled)
    gap = compare(first, other)["first_minus_this"]
    assert gap["value"] == gap["tasks"]["t"]["value"] == 0.5 and gap["n"] == 8
    assert gap["p"] == pytest.approx(2 * (1 + 6) / 2**6, abs=0.02)  # McNemar: 5 won, 1 lost
    assert gap["interval"][0] < 0.5 < gap["interval"][1]
    even = compare(first, first)["first_minus_this"]
    assert even["value"] == 0 and even["interval"] == [0, 0] and even["p"] == 1


def test_the_mean_of_tasks_weighs_tasks_not_questions():
    sets_, answers = [], {}
    for name, hits in (("a", [1] * 30), ("b", [0] * 10)):
        one, found = answered(hits)
        sets_.append(TaskSet(name, one.questions, "acc"))
        answers[name] = found
    row = summary(sets_, answers, pooled=False)
    assert row["value"] == 0.5 and row["interval"] == [0.5, 0.5]
    whole = summary(sets_, answers, pooled=True)
    assert whole["value"] == 0.75
    other = {name: [{**answer, "acc": 1} for answer in some] for name, some in answers.items()}
    assert compare(summary(sets_, other, pooled=False), row)["first_minus_this"]["value"] == 0.5
    assert compare(summary(sets_, other, pooled=True), whole)["first_minus_this"]["value"] == 0.25


def test_tables(sets):
    model = tiny_llama(max_positions=4096)
    for suite, some in sets.items():
        row = {"model": "m", **measure(model, TOKENIZER, some[:2], pooled=suite == "mmlu")}
        heads, rows = table({"suite": suite, "rows": [row, {**row, **compare(row, row)}]})
        assert all(len(cells) == len(heads) for cells in rows) and rows[0][0] == "m"


def test_a_stopped_run_goes_on_and_another_limit_reuses_what_is_whole(sets, tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "QUESTIONS_PER_PART", 1)
    model, asked = tiny_llama(max_positions=4096), []
    straight = measure(model, TOKENIZER, sets["commonsense"])
    inner = accuracy.ask

    def stops(*args, **given):
        asked.append(args)
        if len(asked) == 6:
            raise KeyboardInterrupt
        return inner(*args, **given)

    monkeypatch.setattr(accuracy, "ask", stops)
    with pytest.raises(KeyboardInterrupt):
        measure(model, TOKENIZER, sets["commonsense"], parts=Parts(tmp_path))
    told = []
    again = measure(model, TOKENIZER, sets["commonsense"], parts=Parts(tmp_path), tell=lambda *a: told.append(a))
    assert json.dumps(again) == json.dumps(straight) and told[-1] == (14, 14)
    assert len(asked) == 6 + 12 - 5  # the two sets of ARC have their questions in common
    few = [one.first(1) for one in sets["commonsense"]]
    assert measure(model, TOKENIZER, few, parts=Parts(tmp_path))["n"] == 7 and len(asked) == 13
    measure(tiny_llama(max_positions=4096, seed=1), TOKENIZER, few, parts=Parts(tmp_path))
    assert len(asked) == 13 + 7
