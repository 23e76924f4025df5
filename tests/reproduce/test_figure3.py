"""Figure 3: curves."""

import math

from anchorlm.train.sinks import read_metrics
from reproduced import by_name


def test_curves_begin_before_the_first_step_and_hold_every_evaluation(done):
    out, result, _ = done
    figure = by_name(result)["figure3"]["figures"][0]
    start = {name: points[0] for name, points in figure["curves"].items()}
    assert start["mse-free"] == start["ce"] == start["both"] and start["mse"]["perplexity"] == start["ce"]["perplexity"]
    assert start["mse"]["mse"] != start["ce"]["mse"]  # fed the teacher's hidden states, no error reaches the next layer
    for name, points in figure["curves"].items():
        records = [r for r in read_metrics(out / "figure3" / "rows" / name / "metrics.jsonl") if "eval" in r]
        assert [point["step"] for point in points] == [0, 1, 2]
        assert [p["perplexity"] for p in points[1:]] == [math.exp(r["eval"]["ce"]) for r in records]
        assert [p["mse"] for p in points[1:]] == [r["eval"]["mse"] for r in records]
