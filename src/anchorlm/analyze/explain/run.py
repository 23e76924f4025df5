"""Analyses of one model by name: what each needs is checked first, each result goes to its own file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anchorlm.convert.load import load_tokenizer
from anchorlm.convert.summary import source_config
from anchorlm.core import UserError, atomic_file
from anchorlm.data import TokenStore, find_files
from anchorlm.eval.kept import Facts, check_kept, check_run_folder
from anchorlm.eval.parts import Parts, model_digest
from anchorlm.eval.runner import open_store
from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import ModelShape, Plan

from ..probes import cut_pieces
from . import ablation, cost, keeping, knockout, likeness, readmaps
from .job import Analysis, Job, Options, Progress, Target, names_of

ANALYSES: dict[str, Analysis] = {
    "knockout": Analysis(
        knockout.knockout, knockout.check, uses=("recall", "layers", "control"), prepare=knockout.prepare
    ),
    "similarity": Analysis(likeness.similarity, likeness.check),
    "readmaps": Analysis(readmaps.readmaps, readmaps.check, text=None),
    "ablation": Analysis(ablation.ablation, ablation.check, uses=tuple(ablation.AXES), lacks=ablation.lacks),
    "choosers": Analysis(keeping.choosers, keeping.check, uses=("layers", "kept")),
    "cost": Analysis(cost.cost, cost.check, text=False, weights=False, uses=("context", "results")),
}

Texts = TokenStore | str | Path | Iterable[str | Path]


def run_analysis(
    model: AnchorForCausalLM | Target,
    tokenizer: Any,
    what: str | Iterable[str],
    data: Texts = (),
    *,
    name: str = "model",
    out: str | Path | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Results by analysis, each as JSON. what: some of ANALYSES; options: the fields of `Options`.

    model: with its weights, or, where no analysis needs them (`needs_weights`), what `check_request` gives.

    With `out`, each is written to out/ANALYSIS.json, and a run that was stopped goes on from out/parts.
    `progress(analysis, done, total)`. Raises UserError for an unknown analysis or option, a model that cannot be
    analysed so, missing or too short text, and a folder that holds the results of another run.
    """
    names, chosen = names_of(what, ANALYSES), Options.of(**options)
    target = model if isinstance(model, Target) else Target(name, model.plan, model.shape)
    weights = None if isinstance(model, Target) else model
    if weights is None and needs_weights(names):
        raise UserError(f"{target.name}: {', '.join(names)} need its weights; load it first")
    store = _store(target, names, data, tokenizer, chosen, cache_dir)
    folder = Path(out) if out is not None else None
    parts = Parts(folder and folder / "parts")
    digest = None if weights is None else model_digest(weights)
    check_out(target, names, chosen, store, out, digest)
    job = Job(weights, target, tokenizer, store, chosen, parts, digest, progress)
    results = {}
    for each in names:
        ANALYSES[each].prepare(job)
    for each in names:
        results[each] = ANALYSES[each].run(job)
        if folder:
            with atomic_file(folder / f"{each}.json") as file:
                json.dump(results[each], file, indent=1)
    return results


def check_request(
    source: str,
    what: str | Iterable[str],
    data: Texts,
    base: str | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> tuple[list[str], Target]:
    """Names of the analyses and the model, after everything was checked that needs no weight. Raises UserError."""
    check_run_folder(out)
    names, chosen = names_of(what, ANALYSES), Options.of(**options)
    config, stored = source_config(source)
    shape = ModelShape.from_config(config)
    target = Target(source, Plan.from_dict(stored.get("plan") or {}, shape.layers), shape)
    _check(target, names, data, chosen)
    store = None
    if wants_text(names, data):
        find_files(data)
        tokenizer = load_tokenizer(source, base)
        store = _store(target, names, data, tokenizer, chosen, None)
        for name in names:
            ANALYSES[name].prepare(Job(None, target, tokenizer, store, chosen, Parts(None), None))
    check_out(target, names, chosen, store, out)
    return names, target


def check_out(
    target: Target,
    names: Iterable[str],
    options: Options,
    store: TokenStore | None,
    out: str | Path | None,
    digest: str | None = None,
) -> None:
    """Raise UserError when the folder holds results of another run. digest: of the weights, once they are loaded."""
    check_run_folder(out)
    text = None if store is None else store.content_hash
    for name in names if out is not None else ():
        facts = _facts(name, target.plan.to_dict(), options.model_dump(mode="json"), text, digest)
        check_kept(Path(out or "") / f"{name}.json", name, facts, _kept)


def _kept(result: dict[str, Any]) -> Facts:
    text = result["data"] and result["data"]["hash"]
    return _facts(result["kind"], result["plan"], result["options"], text, result["digest"])


def _facts(name: str, plan: dict[str, Any], options: dict[str, Any], text: str | None, digest: str | None) -> Facts:
    used = ANALYSES[name].used(text is not None)
    fixed = {key: value for key, value in options.items() if key in used}
    return Facts({"plan": plan, "text": text, **fixed}, {"model": digest})


def needs_weights(names: Iterable[str]) -> bool:
    return any(ANALYSES[name].weights for name in names)


def wants_text(names: Iterable[str], data: Texts) -> bool:
    """Whether some analysis reads the text. Text that none would read is a mistake."""
    given = _given(data)
    needed = [ANALYSES[name].text for name in names]
    if given and all(text is False for text in needed):
        raise UserError("--data is given, but no analysis that was asked for reads text; leave it out")
    return given or True in needed


def _given(data: Texts) -> bool:
    return isinstance(data, TokenStore) or bool(data)


def _check(target: Target, names: Iterable[str], data: Texts, options: Options) -> None:
    used = set().union(*(ANALYSES[name].used(_given(data)) for name in names))
    for field in Options.model_fields:
        if field in options.model_fields_set - used:
            raise UserError(f"analyze option {field} has no meaning for {', '.join(names)}")
    _check_sizes(target, names, options)
    for name in names:
        ANALYSES[name].check(target, options)
        if ANALYSES[name].text and not _given(data):
            raise UserError(f"{name} needs --data: a text file or a folder of them")
    if wants_text(names, data):
        target.check_context(options)


def _check_sizes(target: Target, names: Iterable[str], options: Options) -> None:
    """Raise UserError for an option that says nothing of this model in any of the analyses that use it."""
    for field in options.model_fields_set:
        using = [ANALYSES[name] for name in names if field in ANALYSES[name].uses]
        whats = [analysis.lacks(target, options).get(field) for analysis in using]
        if whats and all(whats):
            raise UserError(f"analyze option {field} is given, but {target.name} has no {whats[0]}")


def _store(
    target: Target, names: list[str], data: Texts, tokenizer: Any, options: Options, cache_dir: str | Path | None
) -> TokenStore | None:
    """The text, long enough; None when no analysis reads one."""
    _check(target, names, data, options)
    if not wants_text(names, data):
        return None
    store = open_store(data, tokenizer, cache_dir)
    cut_pieces(store, options.context, options.documents, "an analysis")
    return store
