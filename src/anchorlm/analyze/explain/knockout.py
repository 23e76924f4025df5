"""Branch knock-out by layer and distance (Anchor, arXiv 2611.04327, Figure 2): what a layer's memory and window carry.

Loss without a branch minus loss with it, on the same targets. First and last layers are fragile to any disturbance,
so two controls stand beside it: the same on targets whose source is in the window, and noise of the removed norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anchorlm.data.crossing import distance_bins
from anchorlm.data.distances import recall_text
from anchorlm.data.recall import RecallSource

from ..probes import Probe, text_probe
from ..tally import Rows, by_group, more
from .job import Job, Options, Target
from .knocks import Intact, Knock, knocks, measured

Row = dict[str, Any]


def check(target: Target, options: Options) -> None:
    """Raise UserError for layers that are not there, or a context in which nothing lies beyond the window."""
    target.layers(options)
    target.check_context(options)


def prepare(job: Job) -> None:
    """Raise UserError for a context in which a generated text has no room, and for a text too short for it."""
    few = job.options.model_copy(update={"recall": min(job.options.recall, 1)})
    probes_of(replace(job, options=few))


def knockout(job: Job) -> Row:
    """Change of loss in nats a token by text, branch, layer and distance bin, with 95 % intervals over documents."""
    target, options = job.target, job.options
    chosen = knocks(target.plan, target.layers(options))
    texts = {name: probes for name, probes in probes_of(job).items() if probes}
    done, total = 0, len(chosen) * sum(map(len, texts.values()))
    found = {}
    for name, probes in texts.items():
        intact: Rows = []
        outcomes: list[list[Row]] = [[] for _ in chosen]
        for probe in probes:
            whole = Intact(job.model, probe)
            intact.append(job.parts.run(job.key("knockout", probe=probe.digest, knock=None), whole.sums))
            for outcome, knock in zip(outcomes, chosen, strict=True):
                outcome.append(_measured(job, whole, knock))
                done += 1
                job.tell("knockout", done, total)
        rows = [_row(k, o, intact, job) for k, o in zip(chosen, outcomes, strict=True)]
        found[name] = {"n": len(probes), "intact": by_group(intact, None, options.seed), "rows": rows}
    bins = list(distance_bins(target.window(options), options.context))
    return job.head("knockout", len(texts["text"])) | {"window": target.window(options), "bins": bins, "texts": found}


def probes_of(job: Job) -> dict[str, list[Probe]]:
    """`text`: documents whose tokens are grouped by how far back their word pair stood; `recall`: facts asked for."""
    options, window = job.options, job.target.window(job.options)
    text = [text_probe(piece, window, options.context) for piece in job.pieces()]
    if not options.recall or job.tokenizer is None:
        return {"text": text}
    source = RecallSource(job.text(), job.tokenizer, options.context)
    bins = distance_bins(window, options.context)
    draws = [np.random.default_rng([options.seed, 7, index]) for index in range(options.recall)]
    return {"text": text, "recall": [recall_probe(source, bins, rng) for rng in draws]}


def recall_probe(source: RecallSource, bins: dict[str, tuple[int, int]], rng: np.random.Generator) -> Probe:
    """One text with a question for each bin; groups: the bins, and all."""
    made = recall_text(source, list(bins.values()), rng)
    targets = np.concatenate([query.targets for query in made.queries])
    owner = np.repeat(np.arange(len(bins)), [len(query.targets) for query in made.queries])
    groups = {"all": np.ones(len(targets), bool)} | {name: owner == i for i, name in enumerate(bins)}
    return Probe(made.ids, targets, groups)


def _measured(job: Job, whole: Intact, knock: Knock) -> Row:
    options = job.options
    facts = {"branch": knock.branch, "layer": knock.layer, "slots": list(knock.slots)}
    seeded = {"control": options.control, "seed": options.seed if options.control else None}
    key = job.key("knockout", probe=whole.probe.digest, knock=facts, **seeded)
    return job.parts.run(key, lambda: measured(whole, knock, options.control, options.seed))


def _row(knock: Knock, outcomes: Sequence[Row], intact: Rows, job: Job) -> Row:
    """change: of loss; noise: what noise of the same norm does; over_noise, over_near: change beyond either control."""
    seed, without = job.options.seed, [outcome["without"] for outcome in outcomes]
    noise = [outcome["noise"] for outcome in outcomes] if outcomes[0]["noise"] is not None else None
    near, *far = distance_bins(job.target.window(job.options), job.options.context)
    over = {name: more(without, intact, name, near, seed) for name in far}
    return {
        "branch": knock.branch,
        "layer": knock.layer,
        "slots": list(knock.slots),
        "change": by_group(without, intact, seed),
        "noise": noise and by_group(noise, intact, seed),
        "over_noise": noise and by_group(without, noise, seed),
        "over_near": {name: value for name, value in over.items() if value is not None},
    }
