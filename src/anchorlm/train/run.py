"""`train`: from a converted model, texts and a recipe to a folder with the trained adapter and the run's record."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from ..convert.adapters import merge_lora
from ..convert.cached import cache_folder
from ..convert.save import save
from ..core import alone, pick_dtype
from ..data import TokenStore, batches
from ..settings import Recipe
from .checkpoint import Position, read_position
from .folder import check_identity, find_checkpoint, identity, publish, write_start
from .loop import Run, check_rows, run_stages
from .losses import View
from .parallel import World, check_shard, gather, joined
from .preview import Preview, available_bytes, preview
from .rows import mixture
from .sinks import check_sinks, open_sinks, read_metrics
from .stages import active_stages, check_recipe, short_stages, term_names
from .step import make_view

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
UNFINISHED = ".model"
Data = TokenStore | str | Path | Iterable[str | Path]


def train(
    model: Any,
    tokenizer: Any,
    recipe: Recipe,
    data: Data,
    out: str | Path,
    *,
    resume: str = "auto",
    dry_run: bool = False,
    eval_data: Data | None = None,
    console: Console | None = None,
) -> Preview:
    """Train `model` in place and write the folder `out`, which `load` reads like any saved model.

    data, eval_data: texts (files, folders) or a TokenStore. resume: "auto" goes on from the newest complete
    checkpoint in `out`, "never" insists on an empty folder, a path names one checkpoint. A resumed run gives the same
    losses and weights, bit for bit, as one that never stopped. dry_run prints what trains and the memory needed,
    and changes nothing. Under torchrun or `accelerate launch` every process takes its own data.batch rows of a step,
    and only the first one writes and prints. A model without a named base is stored whole, its LoRA merged.
    Raises UserError for wrong input and TrainingError when a loss or gradient is not finite.
    """
    with joined(next(model.parameters()).device) as world, ExitStack() as held:
        console, out = _voice(console, world), Path(out)
        check_sinks(recipe.log)
        plan = preview(model, recipe)
        check_recipe(recipe, model.plan)
        check_shard(recipe, term_names(model, recipe), world)
        if dry_run:
            _print_start(console, recipe, plan)
            return plan
        world.share(lambda: held.enter_context(alone(out)))
        store = _open_store(data, tokenizer)
        wanted = identity(recipe, model, store, world.size)
        found = world.share(lambda: find_checkpoint(out, resume, lambda line: console.print(line, **PLAIN)))
        position = _position(found, wanted, recipe)
        rows = mixture(recipe.data, store, tokenizer)
        check_rows(model, recipe, rows, position)
        views = _eval_views(eval_data, tokenizer, recipe, model, console)
        _print_start(console, recipe, plan)
        world.share(lambda: write_start(out, recipe, wanted, plan.to_dict()))
        _prepare(model, recipe)
        run = Run(model, recipe, store, rows, out, views, position, found, world=world)
        _run(run, console)
        _finish(run, tokenizer, console)
        return plan


def _voice(console: Console | None, world: World) -> Console:
    """Where to print; only the first process does."""
    return (console or Console()) if world.first else Console(quiet=True)


def _print_start(console: Console, recipe: Recipe, plan: Preview) -> None:
    console.print(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False), **PLAIN)
    for table in plan.tables():
        console.print(table)
    for line in short_stages(recipe):
        console.print(f"warning: {line}", **PLAIN)
    free = available_bytes()
    if plan.total_bytes > free:
        needed = f"about {plan.total_bytes:,} bytes needed, {free:,} free"
        console.print(f"warning: {needed}; try --set checkpoint=true", **PLAIN)


def _open_store(data: Data, tokenizer: Any) -> TokenStore:
    return data if isinstance(data, TokenStore) else TokenStore.build(data, tokenizer, cache_folder() / "tokens")


def _position(found: Path | None, wanted: dict[str, Any], recipe: Recipe) -> Position:
    """Where the run stands: at its beginning, or at the checkpoint once that is known to be of the same run."""
    if found is None:
        return Position(next(iter(active_stages(recipe))), identity=wanted)
    position = read_position(found)
    check_identity(position.identity, wanted, found)
    return position


def _prepare(model: Any, recipe: Recipe) -> None:
    """Evaluation mode, since teacher and student must agree without drop-out; frozen weights in the asked dtype."""
    model.eval()
    if recipe.dtype == "auto":
        return
    memory = {id(parameter) for parameter in model.memory_parameters().values()}
    for parameter in model.parameters():
        if id(parameter) not in memory:
            parameter.data = parameter.data.to(pick_dtype(recipe.dtype, parameter.device))


def _eval_views(data: Data | None, tokenizer: Any, recipe: Recipe, model: Any, console: Console) -> list[View]:
    if data is None:
        if recipe.eval_every:
            console.print("no evaluation text is given, so eval_every is not used", **PLAIN)
        return []
    return eval_views(_open_store(data, tokenizer), recipe, next(model.parameters()).device)


def eval_views(store: TokenStore, recipe: Recipe, device: torch.device) -> list[View]:
    """The batches on which a run of `recipe` is evaluated, always the same ones."""
    rows = recipe.data
    stream = batches(store, rows.length, rows.batch, 0, packing=rows.packing)
    return [make_view(batch, device, rows.on_document) for batch in islice(stream, recipe.eval_batches)]


def _run(run: Run, console: Console) -> None:
    total = sum(stage.steps for stage in active_stages(run.recipe).values())
    if run.resumed:
        console.print(f"resuming at step {run.position.step} of {total} from {run.resumed}", **PLAIN)
    if run.world.first:
        run.sinks = open_sinks(run.out, run.recipe.log, run.position.step, total, console)
    try:
        run_stages(run)
    except KeyboardInterrupt:
        console.print(f"stopped after step {run.position.step}; {run.last_good}; the same command goes on", **PLAIN)
        raise
    finally:
        for sink in run.sinks:
            sink.close()


def _finish(run: Run, tokenizer: Any, console: Console) -> None:
    """Write the model's files into the run's folder, once."""
    if not run.world.share(lambda: (run.out / "config.json").is_file()):
        if run.recipe.shard:
            gather(run.model)
        if not getattr(run.model.config, "base", None):
            merge_lora(run.model)
        run.world.share(lambda: _publish(run, tokenizer))
    console.print(f"trained {run.position.step} steps, {run.position.tokens:,} tokens; model in {run.out}", **PLAIN)


def _publish(run: Run, tokenizer: Any) -> None:
    temporary = run.out / UNFINISHED / run.out.resolve().name  # its last part is the title on the model's card
    shutil.rmtree(temporary.parent, ignore_errors=True)
    save(run.model, temporary, tokenizer, run=_record(run))
    publish(temporary, run.out)
    temporary.parent.rmdir()


def _record(run: Run) -> dict[str, Any]:
    """What the model's card and run.json say about the training."""
    metrics = read_metrics(run.out / "metrics.jsonl")
    evaluations = [record for record in metrics if "eval" in record]
    return {
        "recipe": run.recipe.model_dump(mode="json"),
        "data": {"documents": len(run.store), "names": _names(run.store.names), **run.position.identity["data"]},
        "training": {"steps": run.position.step, "tokens": run.position.tokens},
        "metrics": {"last": metrics[-1] if metrics else None, "evaluation": evaluations[-1] if evaluations else None},
    }


def _names(names: Sequence[str], shown: int = 30) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
