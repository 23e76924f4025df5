"""Which layers of a model need memory, measured on the model itself, and the plan that follows from it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from anchorlm.convert.attach import convert
from anchorlm.convert.bases import Base, load_base, load_base_config
from anchorlm.core import UserError, atomic_file, check_folder, check_page_apart
from anchorlm.data import TokenStore, find_files
from anchorlm.environment import environment
from anchorlm.eval.kept import check_ours
from anchorlm.eval.parts import Parts, model_digest
from anchorlm.eval.runner import open_store
from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import ModelShape, Plan, Reach

from . import probes
from .bench import Bench
from .figures import figures
from .scan import Lab, Progress
from .settings import Settings
from .stages import measure

HEAD = "# Written by anchorlm place; {name} says what was measured.\n"


@dataclass(frozen=True)
class Placement:
    """What was found. plan: loads with `convert`; layers: one row each, the most needed first; trials: every one.

    size: bytes the plan adds to a window in every layer, keys and values in 2 bytes a number. result: all as JSON.
    """

    plan: Plan
    layers: list[dict[str, Any]]
    trials: list[dict[str, Any]]
    size: int
    result: dict[str, Any]


def place(
    source: Any,
    data: TokenStore | str | Path | Iterable[str | Path],
    window: int = 128,
    budget: int | str = "2MB",
    *,
    tokenizer: Any = None,
    out: str | Path | None = None,
    report: str | Path | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Placement:
    """Measure every layer of `source` on `data` and make the plan that fits `budget` bytes beside the windows.

    source: the name of a BASE, what `load_base` returns, a transformers model (left as it is) or an anchorlm model,
    whose weights are measured as the teacher. `options`: the other fields of Settings. With `out` (a .yaml file) the
    plan is written there, every trial to the .json beside it, and a run that was stopped goes on from the .parts
    folder; `report` is one HTML page. `progress(stage, done, at most)`.
    Raises UserError for values out of range, a budget below one state, too short a text, and outputs of anything else.
    """
    started = time.process_time()
    check_outputs(out, report)
    settings = Settings.of(budget=budget, window=window, **options)
    need = settings.check(_shape(source))
    if not isinstance(data, TokenStore):
        data = find_files(data)
    with _opened(source, dtype, device) as (model, own):
        tokenizer = own if tokenizer is None else tokenizer
        store = open_store(data, tokenizer, cache_dir)
        lab, facts = _lab(model, tokenizer, store, settings, need.window, out, progress)
        run, choice = measure(lab, settings, need)
        described = environment(model)
    about = {"kind": "place", "base": _name(source), "settings": asdict(settings), **facts}
    spent = {"cpu_seconds": round(time.process_time() - started, 1), "measured_now": lab.bench.spent}
    result = about | figures(run, choice) | {"environment": described | spent}
    _write(result, choice.plan, out, report)
    return Placement(choice.plan, result["layers"], result["trials"], choice.size, result)


def _shape(source: Any) -> ModelShape:
    """Sizes from the config alone, so that a mistake is told before weights are read."""
    if isinstance(source, AnchorForCausalLM):
        return source.shape
    if isinstance(source, str | Path):
        return ModelShape.from_config(load_base_config(source))
    return ModelShape.from_config((source.model if isinstance(source, Base) else source).config)


def _name(source: Any) -> str | None:
    return str(source) if isinstance(source, str | Path) else getattr(source, "name", None)


@contextmanager
def _opened(source: Any, dtype: str, device: str) -> Iterator[tuple[AnchorForCausalLM, Any]]:
    """The teacher as an anchorlm model, and its tokenizer if known; a given transformers model is put back after."""
    if isinstance(source, AnchorForCausalLM):
        yield source, None
        return
    base = load_base(source, dtype=dtype, device=device) if isinstance(source, str | Path) else source
    backbone = base.model if isinstance(base, Base) else base
    layers = backbone.model.layers
    own = [layer.self_attn for layer in layers]
    full = Plan((Reach(),) * len(own))
    try:
        yield convert(base, full).eval(), base.tokenizer if isinstance(base, Base) else None
    finally:
        for layer, attention in zip(layers, own, strict=True):
            layer.self_attn = attention


def _lab(
    model: AnchorForCausalLM,
    tokenizer: Any,
    store: TokenStore,
    settings: Settings,
    window: Reach,
    out: str | Path | None,
    progress: Progress | None,
) -> tuple[Lab, dict[str, Any]]:
    with_needles = settings.needles and tokenizer is not None
    made = probes.rounds(
        store, tokenizer, settings.context, settings.window, settings.documents, with_needles, settings.seed
    )
    data = {"names": list(store.names[:20]), "documents": len(made), "hash": store.content_hash}
    facts = {"model": model_digest(model), "data": data, "tokenizer": store.tokenizer_hash}
    key = {"suite": "place", "model": facts["model"], "window": asdict(window)}
    parts = Parts(None if out is None else Path(out).with_suffix(".parts"))
    return Lab(Bench(model, key, window, parts), made, progress), facts


def _write(result: dict[str, Any], plan: Plan, out: str | Path | None, report: str | Path | None) -> None:
    if out is not None:
        path = Path(out)
        with atomic_file(path.with_suffix(".json")) as file:
            json.dump(result, file, indent=1)
        with atomic_file(path) as file:
            name = path.with_suffix(".json").name
            file.write(HEAD.format(name=name) + yaml.safe_dump(plan.to_dict(), sort_keys=False))
    if report is not None:
        from anchorlm.report.html import write_page

        write_page({"place": [result]}, report, title=f"Where memory matters: {result['base'] or 'model'}")


def check_outputs(out: str | Path | None, report: str | Path | None) -> None:
    """Raise UserError for an output that cannot be the file it should be, or is one that no placement wrote."""
    if out is not None:
        _check_plan(Path(out))
    if report is not None:
        from anchorlm.report.html import check_page

        check_page(report)
        for written in () if out is None else (Path(out), *map(Path(out).with_suffix, (".json", ".parts"))):
            check_page_apart(report, written)


def _check_plan(plan: Path) -> None:
    if plan.suffix not in (".yaml", ".yml"):
        raise UserError(f"output {str(plan)!r} must end in .yaml; it becomes a plan")
    if plan.is_dir():
        raise UserError(f"output {plan} is a folder; name a file")
    check_folder(plan.parent)
    check_folder(plan.with_suffix(".parts"))
    if plan.exists() and not plan.read_text(encoding="utf-8", errors="replace").startswith(HEAD.partition("{")[0]):
        raise UserError(f"plan {plan} was not written by anchorlm place; name another, or move it away")
    check_ours(plan.with_suffix(".json"), "place")
