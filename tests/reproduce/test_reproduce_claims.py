"""Verdicts and paired rises against known answers."""

import pytest

from anchorlm.reproduce import claims
from anchorlm.reproduce.lab import losses, mean_documents
from reproduced import estimate, pieces


def test_a_verdict_needs_the_whole_interval():
    assert claims.above(estimate(1, 0.5, 2)) == claims.AGREES and claims.below(estimate(1, 0.5, 2)) == claims.NOT
    assert claims.above(estimate(-1, -2, -0.5)) == claims.NOT and claims.below(estimate(-1, -2, -0.5)) == claims.AGREES
    assert claims.above(estimate(1, -1, 2)) == claims.below(estimate(1, -1, 2)) == claims.UNCLEAR
    assert claims.above(estimate(0.8, 0.7, 0.9), 0.75) == claims.UNCLEAR
    assert claims.above(None) == claims.NOT_COMPARABLE
    assert claims.above({"value": 1.0, "interval": None}) == claims.AGREES
    assert claims.together(claims.AGREES, claims.NOT, claims.UNCLEAR) == claims.NOT
    assert claims.claim("a", "b", "c", claims.NOT, {claims.NOT: "because"})["why"] == "because"


def test_intervals_that_are_apart():
    high, low, wide = estimate(0.9, 0.8, 1.0), estimate(0.5, 0.4, 0.6), estimate(0.7, 0.5, 0.9)
    assert claims.apart(high, low) == claims.AGREES and claims.apart(low, high) == claims.NOT
    assert claims.apart(high, wide) == claims.UNCLEAR and claims.apart(None, low) == claims.NOT_COMPARABLE
    assert claims.within(estimate(0.1, -0.1, 0.15), 0.2) == claims.AGREES
    assert claims.within(estimate(-0.5, -0.6, -0.4), 0.2) == claims.NOT
    assert claims.within(estimate(0.2, 0.1, 0.3), 0.2) == claims.UNCLEAR and claims.within(None, 1) != claims.AGREES


def test_rises_are_paired_by_piece():
    rise = losses(pieces(30, 50, 41), pieces(20, 40, 30), 0)
    assert rise["all"]["value"] == pytest.approx(31 / 30) and rise["all"]["interval"][0] >= 1
    assert rise["cross_window"]["value"] == pytest.approx(31 / 2 / 12)
    mean = mean_documents([pieces(10, 20), pieces(30, 60)])
    assert [piece["all"] for piece in mean] == [[20, 10], [40, 10]]


@pytest.mark.parametrize("rise, whole, verdict", [
    ((0.0, -0.1, 0.1), (1.0, 0.5, 1.5), claims.AGREES),
    ((0.2, 0.1, 0.3), (1.0, 0.5, 1.5), claims.NOT),
    ((0.0, -0.1, 0.1), (0.1, -0.5, 0.5), claims.NOT_COMPARABLE),
    ((0.2, 0.1, 0.3), (-0.2, -0.3, -0.1), claims.NOT_COMPARABLE),
])  # fmt: skip
def test_nothing_is_missed_only_of_what_is_worth_something(rise, whole, verdict):
    assert claims.no_loss(estimate(*rise), estimate(*whole)) == verdict
    assert claims.no_loss(None, estimate(*whole)) == claims.no_loss(estimate(*rise), None) == claims.NOT_COMPARABLE


def test_what_rounds_to_nothing_has_no_minus():
    assert claims.nats(estimate(-0.0004, -0.0012, 0.0)) == "+0.000 nats (-0.001 to +0.000)"
    assert claims.number(estimate(-0.0001, -0.0004, 0.0002)) == "0.000 (0.000 to 0.000)"
