"""Figures 5 and 7: what follows from shapes."""

from anchorlm.cli import __main__ as program
from anchorlm.reproduce import shapes


def test_coverage_counts_what_a_token_sees():
    """Against a walk over the text: the last token sees its window, and what was committed before its chunk."""
    for length, window, chunk in ((32768, 512, 512), (50, 8, 8), (51, 8, 6), (7, 8, 8), (17, 4, 8)):
        last = length - 1
        near = {t for t in range(length) if last - t < window}
        far = {t for t in range(length) if t < last // chunk * chunk}
        neither = set(range(length)) - near - far
        assert shapes.coverage(length, window, chunk) == (len(near), len(far), len(neither))


def test_items_of_shapes_need_no_text(tmp_path, capsys):
    assert program.run(["reproduce", "figure5", "figure7", "-o", str(tmp_path / "o")]) == 0
    shown = capsys.readouterr().out
    assert "| anchor | 2 | 12,582,912 | 16.0 | 0 |" in shown and "8 states in 32 layers, 50,331,648 bytes" in shown
    assert "disagrees" not in shown
