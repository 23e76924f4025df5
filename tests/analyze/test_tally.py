"""Losses, paired changes and intervals against plain loops over documents."""

import numpy as np
import pytest

from anchorlm.analyze.tally import Goal, above, below, by_group, change, loss
from anchorlm.eval.stats import DRAWS


def rows(seed, documents=5, needles=3):
    rng = np.random.default_rng(seed)
    text = [{"all": [float(rng.uniform(20, 30)), int(rng.integers(8, 12))]} for _ in range(documents)]
    return text + [{"needle": [float(rng.uniform(5, 9)), 7], "exact": [1.0, 1]} for _ in range(needles)]


def lifted(base, text, needle):
    """The same rows with so many nats more a token."""
    more = {"all": text, "needle": needle, "exact": 0}
    return [{name: [value + more[name] * n, n] for name, (value, n) in row.items()} for row in base]


def brute_interval(pairs, seed):
    """Documents drawn anew, one at a time."""
    drawn = np.random.default_rng([seed, 95]).integers(len(pairs), size=(DRAWS, len(pairs)))
    means = [sum(pairs[i][0] for i in d) / sum(pairs[i][1] for i in d) for d in drawn]
    return np.quantile(means, [0.025, 0.975])


def test_a_loss_is_a_ratio_of_sums_with_an_interval_over_documents():
    found = loss(rows(0), "all", seed=3)
    pairs = [row["all"] for row in rows(0) if "all" in row]
    assert found["value"] == pytest.approx(sum(s for s, _ in pairs) / sum(n for _, n in pairs))
    assert found["interval"] == pytest.approx(brute_interval(pairs, 3))
    assert found["targets"] == sum(n for _, n in pairs) and loss(rows(0), "beyond", 3) is None


def test_a_change_is_paired_and_may_cover_fewer_documents():
    base = rows(0)
    other = [{name: [value + 0.1 * i, n] for name, (value, n) in row.items()} for i, row in enumerate(base)]
    found = change(other[:3], base, "all", seed=1)
    pairs = [(0.1 * i, base[i]["all"][1]) for i in range(3)]
    assert found["value"] == pytest.approx(sum(s for s, _ in pairs) / sum(n for _, n in pairs))
    assert found["interval"] == pytest.approx(brute_interval(pairs, 1))
    assert set(by_group(other, base, 0)) == {"all", "needle", "exact"}


def test_a_constant_rise_has_no_spread_and_none_is_exactly_zero():
    base = rows(0)
    assert change(lifted(base, 0.5, 0), base, "all", 0)["interval"] == pytest.approx([0.5, 0.5])
    assert change(base, base, "all", 0) | {"targets": 0} == {"value": 0.0, "interval": [0.0, 0.0], "targets": 0}


def test_the_goal_is_the_mean_share_of_both_tasks():
    teacher = rows(0)
    goal = Goal.of(teacher, lifted(teacher, 0.5, 4.0), seed=0)
    assert goal.change(lifted(teacher, 0.5, 4.0), teacher)["value"] == pytest.approx(1)
    half = goal.change(lifted(teacher, 0.25, 0.0), teacher)
    assert half["value"] == pytest.approx(0.25) and half["interval"] == pytest.approx([0.25, 0.25])
    assert above(half, 0.2) and not above(half, 0.3) and below(half, 0.3)


def test_tokens_beyond_the_window_are_a_task_of_their_own():
    teacher = [{"all": [30.0 + i, 10], "beyond": [4.0, 2]} for i in range(4)]
    window = [{"all": [s + 5, n], "beyond": [4.0 + 2, 2]} for s, n in (row["all"] for row in teacher)]
    goal = Goal.of(teacher, window, seed=0)
    assert goal.weights == pytest.approx({"all": 1 / (2 * 0.5), "beyond": 1 / (2 * 1.0)})
    far = [{**row, "beyond": [5.0, 2]} for row in teacher]
    assert goal.change(far, teacher)["value"] == pytest.approx(0.25)


def test_a_task_that_the_window_does_not_harm_is_left_out():
    teacher = rows(0)
    goal = Goal.of(teacher, lifted(teacher, 0.5, -1.0), seed=0)
    assert list(goal.weights) == ["all"] and goal.skipped == ("needle",)
    assert Goal.of(teacher, lifted(teacher, -0.1, 0.0), seed=0) is None
    assert goal.change(teacher[:1], teacher)["interval"] is None  # one document says nothing about others
