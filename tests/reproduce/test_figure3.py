"""Figure 3: curves."""

import math

from anchorlm.reproduce import load_scale, reproduce
from anchorlm.train.sinks import read_metrics
from reproduced import by_name, job, silent


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


def test_a_second_stage_adds_nothing_to_the_curves(home, done, tmp_path):
    """Its evaluations have no transfer error."""
    scale = load_scale(home / "tiny.yaml", sets={"stage2.steps": 1})
    found = by_name(reproduce("figure3", scale, job(home, tmp_path), say=silent))["figure3"]
    curves, short = found["figures"][0]["curves"], by_name(done[1])["figure3"]["figures"][0]["curves"]
    assert {name: [point["step"] for point in points] for name, points in curves.items()} == dict.fromkeys(
        short, [0, 1, 2]
    )
