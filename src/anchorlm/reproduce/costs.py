"""Table 3 and Figure 6: time from end to end, and what each memory answers for its bytes and its time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..bench.worker import ModelSpec
from ..convert.bases import load_base_config
from ..core import pick_dtype
from ..describe import bytes_at
from ..eval.parts import Parts
from ..eval.scoring import greedy
from ..plan import ModelShape
from ..reading import device_of, prefill
from ..results.plans import row_plans
from ..results.run import Run
from . import claims
from .hybrid import gap_of
from .lab import Lab, answered, ask, documents, losses, trained

ANCHOR, EVERY, TEACHER, LOLCATS, WINDOW = "anchor", "anchor-f", "teacher", "lolcats", "swa-lora"
MODELS = (TEACHER, WINDOW, LOLCATS, EVERY, "anchor-private", ANCHOR)
WHY_TIME = {
    claims.NOT: "on a processor, at these lengths, the products of the weights take most of the time, which all models "
    "share; attention grows above it only later, and small kernels of the memory cost more than they save",
}
WHY_RECALL = {
    claims.UNCLEAR: "after so short a training no memory of a bounded state answers more than a window does",
    claims.NOT: "after so short a training no memory of a bounded state answers more than a window does",
}


WHY_MMLU = {
    claims.NOT_COMPARABLE: "a model of this size answers MMLU by chance; `anchorlm eval --suite mmlu` measures it "
    "where its questions are at hand",
}


def table3(lab: Lab) -> dict[str, Any]:
    """Milliseconds to read prompts of each length and to write after them, several at once."""
    sizes, found = lab.scale.measures.timing, timed(lab)
    lines = [[name, *(f"{row[length]:,.0f}" for length in sizes.lengths)] for name, row in found.items()]
    heads = ["model", *(f"{length:,} tokens" for length in sizes.lengths)]
    series = {name: [[length, row[length]] for length in row] for name, row in found.items()}
    return {
        "tables": [{"title": "", "heads": heads, "rows": lines, "texts": 1}],
        "claims": _time_claims(found),
        "figures": [
            {"kind": "lines", "caption": "Time from end to end", "x": "tokens of the prompt", "y": "milliseconds",
             "series": series}
        ],
        "notes": [
            f"{sizes.rows} prompts of random tokens at once, {sizes.new_tokens} new tokens each, window "
            f"{lab.scale.window}, the best of {sizes.rounds}; weights as converted: what is learned changes no time.",
            "Measured while the machine may have had other work: ratios say more than milliseconds.",
        ],
    }  # fmt: skip


def _time_claims(found: Mapping[str, Mapping[int, float]]) -> list[dict[str, str]]:
    grown = {name: _per_token(found[name]) for name in (TEACHER, ANCHOR)}
    last = max(found[TEACHER])
    gain, whole = (found[name][last] / found[ANCHOR][last] for name in (TEACHER, EVERY))
    growth = f"{grown[TEACHER]:.2f} against {grown[ANCHOR]:.2f} s more for each 1K tokens"
    longest = "at the longest prompt Anchor is faster than"
    rows = [
        ("softmax grows faster with the length than Anchor", "10.8 against 0.5 s more for each 1K tokens from 4K to 8K",
         growth, _over(grown[TEACHER], grown[ANCHOR])),
        (f"{longest} softmax", "4.2 times at 8K", f"{gain:.2f} times at {last:,}", _over(gain, 1)),
        (f"{longest} a state in every layer", "2.1 times at 8K", f"{whole:.2f} times at {last:,}", _over(whole, 1)),
    ]  # fmt: skip
    return [claims.claim(*row, WHY_TIME) for row in rows]


def figure6(lab: Lab) -> dict[str, Any]:
    """Associative recall of rows trained alike, against bytes of state and against the time of Table 3."""
    run = lab.prepare("slots", MODELS)
    asked = ask(lab, run, "ar")
    trained(lab.fill(run), MODELS, least=len(MODELS))
    found, times = answered(lab, run, "ar", asked, MODELS), timed(lab)
    length = max(asked.options.prompt_lengths)
    size = {name: bytes_at(run.built[name].plan, run.shape, length) for name in MODELS}
    points = [
        {"name": name, "x": size[name] / 1e6, "y": 100 * row["value"],
         "interval": row["interval"] and [100 * end for end in row["interval"]]}
        for name, row in found.items() if row["value"] is not None
    ]  # fmt: skip
    return {
        "tables": [_costs(lab, run, found, size, length, times)],
        "claims": _cost_claims(_more(found, LOLCATS, lab), _more(found, WINDOW, lab), size, times),
        "figures": [
            {"kind": "points", "caption": "Recall against state", "x": f"state after {length:,} tokens, MB",
             "y": "recall, %", "points": points}
        ],
        "notes": [
            f"Recall: pairs of words stated and asked again, {found[ANCHOR]['n']} questions in texts of {length:,} "
            "tokens, all distances alike (suite `ar`); the paper has recall-intensive tasks and MMLU."
        ],
    }  # fmt: skip


def _costs(
    lab: Lab, run: Run, found: Mapping[str, Any], size: Mapping[str, int], length: int, times: Mapping[str, Any]
) -> dict[str, Any]:
    heads = ["row", f"bytes of state at {length:,}", "recall", "perplexity", "ms, longest prompt of Table 3"]
    lines = []
    for name in MODELS:
        loss = losses(documents(run, name), None, lab.scale.seed)["all"]
        spent = f"{times[name][max(times[name])]:,.0f}" if name in times else "-"
        shown = [f"{size[name]:,}", claims.percent(found[name]), claims.perplexity(loss), spent]
        lines.append([run.table.row(name, "").note, *shown])
    return {"title": "", "heads": heads, "rows": lines, "texts": 1}


def _more(found: Mapping[str, dict[str, Any]], other: str, lab: Lab) -> dict[str, Any] | None:
    """What Anchor answers above another row."""
    return gap_of("ar", found[ANCHOR], found[other], lab.scale.seed)


def _cost_claims(better: Any, beside: Any, size: Mapping[str, int], times: Mapping[str, Any]) -> list[dict[str, str]]:
    ratio = times[TEACHER][max(times[TEACHER])] / times[ANCHOR][max(times[ANCHOR])]
    bytes_, speed = f"{size[ANCHOR]:,} against {size[LOLCATS]:,}", f"{ratio:.2f} times"
    return [
        claims.claim("Anchor recalls more than LoLCATs", "2.3 to 3.1 times", claims.points(better),
                     claims.above(better), WHY_RECALL),
        claims.claim("Anchor recalls more than the window alone", "no such control", claims.points(beside),
                     claims.above(beside), WHY_RECALL),
        claims.claim("Anchor has fewer bytes of state than LoLCATs", "12.6 against 129.0 MB", bytes_,
                     _over(size[LOLCATS], size[ANCHOR]), from_shapes=True),
        claims.claim("Anchor reads and writes faster than the teacher", "4.3 times", speed, _over(ratio, 1), WHY_TIME),
        claims.claim("Anchor's MMLU is 6.7 to 8.9 points above LoLCATs'", "91 to 95 % of the teacher's",
                     "not measured", claims.NOT_COMPARABLE, WHY_MMLU),
    ]  # fmt: skip


def timed(lab: Lab) -> dict[str, dict[int, float]]:
    """Model -> prompt length -> milliseconds from end to end; kept once measured."""
    parts = Parts(lab.job.out / "timed" / "parts")
    found: dict[str, dict[int, float]] = {}
    for name, spec in timed_models(lab).items():
        sizes = lab.scale.measures.timing.model_dump(mode="json")
        key = {
            "timed": name,
            "plan": spec.plan,
            "base": spec.source,
            "dtype": spec.dtype,
            "device": spec.device,
            **sizes,
        }
        times = parts.run(key, lambda spec=spec: _clocked(lab, spec))
        found[name] = {int(length): value for length, value in times.items()}
        if lab.progress:
            lab.progress("timed", len(found), len(timed_models(lab)))
    return found


def timed_models(lab: Lab) -> dict[str, ModelSpec]:
    """The rows of the table `timed`, as converted."""
    table = lab.scale.table("timed")
    dtype = str(pick_dtype(lab.job.dtype, lab.job.device)).removeprefix("torch.")
    plans = row_plans(table, ModelShape.from_config(load_base_config(table.base)))
    return {name: ModelSpec(table.base, plan.to_dict(), dtype, lab.job.device) for name, plan in plans.items()}


def _clocked(lab: Lab, spec: ModelSpec) -> dict[int, float]:
    model, _ = spec.open()
    sizes = lab.scale.measures.timing
    end_to_end(model, min(sizes.lengths), 1, 2)  # a first run pays for what later ones find ready
    return {
        length: min(end_to_end(model, length, sizes.rows, sizes.new_tokens) for _ in range(sizes.rounds))
        for length in sizes.lengths
    }


def end_to_end(model: Any, length: int, rows: int, new_tokens: int) -> float:
    """Milliseconds to read `rows` prompts of random tokens and to write so many after each."""
    vocab = model.get_input_embeddings().weight.shape[0]
    ids = torch.from_numpy(np.random.default_rng(length).integers(vocab, size=(rows, length)))
    begun = time.perf_counter()
    logits, cache = prefill(model, ids)
    greedy(model, logits, cache, new_tokens)
    if device_of(model).type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - begun)


def _per_token(row: Mapping[int, float]) -> float:
    """Milliseconds a token, or seconds for 1,000, from the shortest prompt to the longest; of a single length, all."""
    first, last = min(row), max(row)
    return (row[last] - row[first]) / (last - first) if last > first else row[last] / last


def _over(first: float, second: float) -> str:
    return claims.AGREES if first > second else claims.NOT
