"""One evaluation run: suites over a model and its baselines, side by side, on the same text and the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorlm.core import UserError, atomic_file, suggest
from anchorlm.data import TokenStore
from anchorlm.data.needles import Needles, check_kind, choose_templates
from anchorlm.environment import environment, model_facts
from anchorlm.eval import niah, ppl
from anchorlm.eval.parts import Parts, model_digest, plan_of
from anchorlm.reading import beyond

PIECES_PER_PART = 8  # perplexity documents after which an interrupted run can go on

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class EvalOptions:
    """What changes the figures (but for batch and block, which must not). Lengths in tokens."""

    context: int = 2048
    limit: int | None = None  # perplexity documents, and needles per length, at most
    seed: int = 0
    window: int | None = None  # of the cross-window targets; by default the model's own
    tails: bool = False  # also score a document's rest shorter than the context
    lengths: tuple[int, ...] | None = None  # of needle prompts; by default the context
    depths: tuple[float, ...] = niah.DEPTHS
    needles: int = 4  # in each cell of lengths x depths
    kind: str = "number"
    templates: str | tuple[str, ...] = "heldout"
    batch: int = 1
    block: int = 512

    @classmethod
    def of(cls, **values: Any) -> EvalOptions:
        """Options from keywords; an unknown one is an error that names a near one."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise UserError(f"eval option {name!r} is unknown; {suggest(name, known)}")
        options = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
        for name in ("context", "needles", "batch", "block", "limit", "window"):
            value = getattr(options, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(f"eval option {name} is {value!r}; a whole number of at least 1 is needed")
        check_kind(options.kind)
        if not isinstance(options.templates, str | tuple):
            raise UserError(f"eval option templates is {options.templates!r}; give a name or a list of names")
        choose_templates(_templates(options))
        _check_list("depths", options.depths, "numbers between 0 and 1", lambda x: 0 <= x <= 1)
        if options.lengths is not None:
            _check_list("lengths", options.lengths, "whole numbers of at least 1", lambda x: x == int(x) and x >= 1)
        return options


def _check_list(name: str, values: Any, wanted: str, fits: Callable[[Any], bool]) -> None:
    numbers = isinstance(values, tuple) and all(isinstance(x, int | float) and fits(x) for x in values)
    if not numbers or not values:
        shown = list(values) if isinstance(values, tuple) else values
        raise UserError(f"eval option {name} is {shown!r}; give a list of {wanted}")


@dataclass(frozen=True)
class Job:
    """What every suite needs: the text, the options, where parts are kept and whom to tell."""

    store: TokenStore
    tokenizer: Any
    options: EvalOptions
    parts: Parts
    progress: Progress | None

    def tell(self, what: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(what, done, total)


def run_eval(
    model: Any,
    tokenizer: Any,
    suites: str | Iterable[str] = ("ppl",),
    data: TokenStore | str | Path | Iterable[str | Path] = (),
    context: int = 2048,
    *,
    versus: Mapping[str, Any] | None = None,
    name: str = "model",
    limit: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Results by suite, one row a model: `model` first, then those of `versus` (name -> model).

    With `out`, each suite's result is written to out/SUITE.json, and a run that was stopped goes on from out/parts.
    `options`: the fields of EvalOptions. `progress(what, done, total)`.
    Raises UserError for an unknown suite or option, missing or too short text.
    """
    names = check_suites(suites)
    chosen = EvalOptions.of(context=context, limit=limit, seed=seed, **options)
    models = {name: model, **(versus or {})}
    chosen = replace(chosen, window=chosen.window or common_window(models.values()))
    folder = Path(out) if out is not None else None
    store = open_store(data, tokenizer, cache_dir)
    job = Job(store, tokenizer, chosen, Parts(folder and folder / "parts"), progress)
    results = {}
    for suite in names:
        results[suite] = _result(suite, models, job)
        if folder:
            with atomic_file(folder / f"{suite}.json") as file:
                json.dump(results[suite], file, indent=1)
    return results


def check_suites(suites: str | Iterable[str]) -> list[str]:
    """Suite names from "ppl,niah" or a list, in order, each once."""
    names = suites.split(",") if isinstance(suites, str) else list(suites)
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in names:
        if name not in SUITES:
            raise UserError(f"suite {name!r} is unknown; {suggest(name, SUITES)}")
    if not names:
        raise UserError(f"no suite named; {suggest('', SUITES)}")
    return names


def open_store(data: Any, tokenizer: Any, cache_dir: str | Path | None = None) -> TokenStore:
    """`data` itself when it is a store, else the store of those files in the user's cache."""
    if isinstance(data, TokenStore):
        return data
    if cache_dir is None:
        from anchorlm.convert.cached import cache_folder

        cache_dir = cache_folder() / "tokens"
    return TokenStore.build(data, tokenizer, cache_dir)


def common_window(models: Iterable[Any]) -> int | None:
    """The window that most layers of the first windowed model have; None when every layer sees everything."""
    for model in models:
        plan = getattr(model, "plan", None)
        if plan is not None and plan.common_window:
            return plan.common_window
    return None


def _result(suite: str, models: dict[str, Any], job: Job) -> dict[str, Any]:
    rows = [
        {"model": name, "plan": plan_of(model), **model_facts(model), **SUITES[suite](name, model, job)}
        for name, model in models.items()
    ]
    if suite == "ppl":
        _compare(rows, job.options.seed)
    store = job.store
    return {
        "kind": "eval",
        "suite": suite,
        "options": asdict(job.options),
        "data": {"names": list(store.names[:20]), "documents": len(store), "hash": store.content_hash},
        "tokenizer": store.tokenizer_hash,
        "environment": environment(),
        "rows": rows,
    }


def _compare(rows: list[dict[str, Any]], seed: int) -> None:
    """Add to each row after the first the first row's perplexity over its own, paired by document."""
    for row in rows[1:]:
        if rows[0]["value"] is not None and row["value"] is not None:
            row["first_over_this"] = ppl.ratio(rows[0]["documents"], row["documents"], seed)


def run_ppl(name: str, model: Any, job: Job) -> dict[str, Any]:
    options = job.options
    if note := beyond(model, options.context):
        return {"metric": "perplexity", "value": None, "interval": None, "n": 0, "unit": "documents", "note": note}
    pieces = ppl.cut(job.store, options.context, options.limit, options.tails)
    key = _key("ppl", model, job) | {"context": options.context, "window": options.window, "tails": options.tails}
    key |= {"limit": options.limit} if options.limit else {}  # it decides which pieces the first ones are
    rows: list[dict] = []
    for begin in range(0, len(pieces), PIECES_PER_PART):
        part = pieces[begin : begin + PIECES_PER_PART]

        def compute(part: list[np.ndarray] = part) -> list[dict]:
            settings = {"window": options.window, "batch": options.batch, "block": options.block}
            return ppl.score(model, part, options.context, **settings)

        rows += job.parts.run(key | {"first": begin, "count": len(part)}, compute)
        job.tell(f"ppl {name}", len(rows), len(pieces))
    return {**ppl.summary(rows, job.store.bytes_per_token, options.seed), "documents": rows}


def run_niah(name: str, model: Any, job: Job) -> dict[str, Any]:
    options = job.options
    needles = Needles(job.store, job.tokenizer, options.kind, _templates(options))
    lengths = options.lengths or (options.context,)
    depths, count = _within_limit(options)
    key = _key("niah", model, job) | {"kind": options.kind, "templates": [t.name for t in needles.templates]}
    cells: list[dict] = []
    for length in lengths:
        for depth in depths:
            cell = key | {"length": length, "depth": depth, "n": count, "seed": options.seed}

            def compute(length: int = length, depth: float = depth) -> dict:
                settings = {"batch": options.batch, "block": options.block}
                return niah.niah_cell(model, needles, length, depth, count, options.seed, **settings)

            cells.append(job.parts.run(cell, compute))
            job.tell(f"niah {name}", len(cells), len(lengths) * len(depths))
    return niah.niah_summary(cells, options.seed)


def _templates(options: EvalOptions) -> str | list[str]:
    return options.templates if isinstance(options.templates, str) else list(options.templates)


def _within_limit(options: EvalOptions) -> tuple[tuple[float, ...], int]:
    """Depths and needles for each so that one length has at most `limit` needles, spread over the depths."""
    depths, limit = options.depths, options.limit
    if limit is None:
        return depths, options.needles
    if limit < len(depths):
        depths = tuple(depths[int(i)] for i in np.linspace(0, len(depths) - 1, limit + 2)[1:-1].round())
    return depths, max(1, min(options.needles, limit // len(depths)))


def _key(suite: str, model: Any, job: Job) -> dict[str, Any]:
    store = job.store
    return {"suite": suite, "model": model_digest(model), "data": store.content_hash, "tokenizer": store.tokenizer_hash}


SUITES: dict[str, Callable[[str, Any, Job], dict[str, Any]]] = {"ppl": run_ppl, "niah": run_niah}
