"""Figure 2: layers against layers."""

import pytest

from anchorlm.reproduce import branches


def test_the_gap_of_layers_and_the_rise_beyond_the_window():
    rise = {"near": {"value": 9.0, "targets": 50}, "a": {"value": 1.0, "targets": 1}, "b": {"value": 3.0, "targets": 3}}
    assert branches.far({"change": rise}, ["a", "b", "c"]) == pytest.approx(2.5)
    assert branches.far({"change": {"near": rise["near"]}}, ["a"]) is None
    found = branches.gap([1.0, 1.2], [0.1, 0.0, 0.2], 0)
    assert found["value"] == pytest.approx(1.0) and 0.7 < found["interval"][0] < 1.0 < found["interval"][1] < 1.3
    assert branches.gap([1.0], [0.5], 0) == {"value": 0.5, "interval": None} and branches.gap([], [1.0], 0) is None
