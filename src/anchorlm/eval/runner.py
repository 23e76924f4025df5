"""One evaluation run: suites over a model and its baselines, side by side, on the same text and the same seed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anchorlm.core import UserError, atomic_file, suggest
from anchorlm.data import TokenStore
from anchorlm.data.tokens import tokenizer_fingerprint
from anchorlm.environment import environment, model_facts
from anchorlm.eval.kept import Facts, check_kept, check_run_folder
from anchorlm.eval.options import EvalOptions
from anchorlm.eval.parts import Parts, model_digest, plan_of
from anchorlm.eval.suite import Job, Material, Progress
from anchorlm.eval.suites import SUITES


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
    `options`: the fields of EvalOptions, and for a suite with options of its own a mapping named after it.
    `progress(what, done, total)`. Raises UserError for an unknown suite or option, missing or too short text.
    """
    models = [model, *(versus or {}).values()]
    chosen = EvalOptions.of(context=context, limit=limit, seed=seed, **options).seen_through(common_window(models))
    prepared = prepare(suites, tokenizer, chosen, data, cache_dir)
    return run_prepared(prepared, model, versus=versus, name=name, out=out, progress=progress)


@dataclass(frozen=True)
class Prepared:
    """An evaluation whose input is read and checked; `materials` by suite."""

    tokenizer: Any
    options: EvalOptions
    store: TokenStore | None
    materials: Mapping[str, Material]

    @property
    def notes(self) -> list[str]:
        return [f"{suite}: {note}" for suite, material in self.materials.items() for note in material.notes]


def prepare(
    suites: str | Iterable[str],
    tokenizer: Any,
    options: EvalOptions,
    data: TokenStore | str | Path | Iterable[str | Path] = (),
    cache_dir: str | Path | None = None,
    positions: int | None = None,
) -> Prepared:
    """Read and check everything that needs no weights.

    positions: tokens that the first model can read; a longer prompt is an error. Raises UserError as `run_eval` does.
    """
    names = check_suites(suites)
    check_own(options, names)
    check_positions(options, names, positions)
    store = None
    if given(data):
        if not any(SUITES[name].reads_text for name in names):
            raise UserError(f"--data is read by no suite of {', '.join(names)}")
        store = open_store(data, tokenizer, cache_dir)
    return Prepared(
        tokenizer, options, store, {name: SUITES[name].prepare(options, tokenizer, store) for name in names}
    )


def run_prepared(
    prepared: Prepared,
    model: Any,
    *,
    versus: Mapping[str, Any] | None = None,
    name: str = "model",
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """`run_eval` of what `prepare` has read. Raises UserError where `out` holds the results of another run."""
    check_names([name, *(versus or {})])
    models = {name: model, **(versus or {})}
    prepared = replace(prepared, options=prepared.options.seen_through(common_window(models.values())))
    options, digests = prepared.options, {name: model_digest(model) for name, model in models.items()}
    check_out(prepared, digests, out, final=True)
    folder = Path(out) if out is not None else None
    parts = Parts(folder and folder / "parts")
    results = {}
    for suite, material in prepared.materials.items():
        job = Job(prepared.store, prepared.tokenizer, options, parts, progress, material)
        results[suite] = _result(suite, models, digests, job)
        if folder:
            with atomic_file(folder / f"{suite}.json") as file:
                json.dump(results[suite], file, indent=1)
    return results


def given(data: Any) -> bool:
    return isinstance(data, TokenStore | str | Path) or bool(list(data))


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


PLAIN = ("ppl", "niah")  # their options stand without the suite's name


def check_own(options: EvalOptions, names: list[str]) -> None:
    """Raise UserError for own options of a suite that is not run, or has none."""
    for suite, given in options.own.items():
        if suite in PLAIN:
            name = next(iter(given))
            raise UserError(f"eval option '{suite}.{name}': suite {suite} has no options of its own; give {name} alone")
        if suite not in names:
            near = suggest(suite, SUITES) if suite not in SUITES else f"the suites are {', '.join(names)}"
            raise UserError(f"eval options of {suite!r} are given, which is not run; {near}")


def check_positions(options: EvalOptions, names: list[str], positions: int | None) -> None:
    for name in names:
        longest = max(SUITES[name].lengths(options), default=0)
        if positions is not None and longest > positions:
            raise UserError(f"suite {name}: {longest:,} tokens are beyond the model, which reads {positions:,} at most")


def open_store(data: Any, tokenizer: Any, cache_dir: str | Path | None = None) -> TokenStore:
    """`data` itself when it is a store, else the store of those files in the user's cache."""
    if isinstance(data, TokenStore):
        return data
    if cache_dir is None:
        from anchorlm.convert.cached import cache_folder

        cache_dir = cache_folder() / "tokens"
    return TokenStore.build(data, tokenizer, cache_dir)


def common_window(models: Iterable[Any]) -> int | None:
    """How far most limited layers of the first model that has some see; None when every layer sees everything."""
    for model in models:
        plan = getattr(model, "plan", None)
        if plan is not None and plan.common_reach:
            return plan.common_reach
    return None


def check_names(names: Iterable[str]) -> None:
    """Raise UserError for two models of one name, of which only one would be measured."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"model {name!r} is named twice; each is measured once")
        seen.add(name)


def check_out(
    prepared: Prepared, digests: Mapping[str, str | None], out: str | Path | None, final: bool = False
) -> None:
    """Raise UserError when the folder holds results of another run.

    digests: by model's name, None while its weights are not loaded; final: all are, and with them the window.
    """
    check_run_folder(out)
    for suite, material in prepared.materials.items() if out is not None else ():
        options = asdict(prepared.options) | {"own": material.options}
        given = {name: value for name, value in options.items() if final or name != "window"}
        facts = _facts(given, material.data["hash"], _vocabulary(prepared), digests)
        check_kept(Path(out or "") / f"{suite}.json", "eval", facts, _kept)


def _kept(result: Mapping[str, Any]) -> Facts:
    digests = {row["model"]: row.get("digest") for row in result["rows"]}
    return _facts(result["options"], result["data"]["hash"], result["tokenizer"], digests)


def _facts(options: Mapping[str, Any], data: str, tokenizer: str, digests: Mapping[str, str | None]) -> Facts:
    fixed = {name: value for name, value in options.items() if name not in ("batch", "block")}
    return Facts(
        fixed | {"data": data, "tokenizer": tokenizer},
        {f"model {os.path.normpath(name)}": digest for name, digest in digests.items()},
    )


def _vocabulary(prepared: Prepared) -> str:
    store = prepared.store
    return store.tokenizer_hash if store else tokenizer_fingerprint(prepared.tokenizer)


def _result(suite: str, models: dict[str, Any], digests: Mapping[str, str | None], job: Job) -> dict[str, Any]:
    rows = [
        {
            "model": name, "digest": digests[name], "plan": plan_of(model), **model_facts(model),
            **SUITES[suite].run(name, model, job),
        }
        for name, model in models.items()
    ]  # fmt: skip
    for row in rows[1:]:
        if rows[0]["value"] is not None and row["value"] is not None:
            row |= SUITES[suite].compare(rows[0], row, job.options.seed)
    assert job.material is not None
    return {
        "kind": "eval",
        "suite": suite,
        "options": {**asdict(job.options), "own": job.material.options},
        "data": job.material.data,
        "notes": list(job.material.notes),
        "tokenizer": job.store.tokenizer_hash if job.store else tokenizer_fingerprint(job.tokenizer),
        "environment": environment(),
        "rows": rows,
    }
