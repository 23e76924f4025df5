"""Table 2: the share of a gain, and bytes of the paper's model."""

import pytest

from anchorlm.reproduce import claims, table2
from reproduced import pieces


def test_the_share_of_the_gain_that_is_kept():
    rows = {"swa-lora": pieces(50, 60), "anchor-private": pieces(40, 40), "anchor": pieces(42, 43)}
    kept = table2.kept_share(rows, "anchor", "all", 0)
    assert kept["value"] == pytest.approx(25 / 30)
    low, high = kept["interval"]
    assert low == pytest.approx(0.8) and high == pytest.approx(0.85)
    assert table2.kept_share({**rows, "anchor-private": pieces(60, 60)}, "anchor", "all", 0) is None


def test_bytes_of_the_papers_model():
    wanted = {
        "anchor-f": 201_326_592, "anchor-i": 176_160_768, "anchor": 12_582_912,
        "anchor-private": 37_748_736, "anchor-hybrid": 50_331_648,
    }  # fmt: skip
    assert {name: table2.paper_bytes(name) for name in wanted} == wanted
    assert table2._bytes_claim()["verdict"] == claims.AGREES
