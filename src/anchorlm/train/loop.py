"""The one training loop: stages, steps, evaluation, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..convert.calibrate import calibrate, untouched
from ..convert.files import CHECKPOINTS
from ..core import UserError, seed_all
from ..data import Mixture, batches
from ..settings import Recipe
from . import checkpoint as saved
from .checkpoint import Position
from .errors import TrainingError
from .folder import write_json
from .guard import check_gradients, check_losses, check_tokens
from .losses import View
from .parallel import ALONE, World, shard
from .rows import draw_narrow, narrowed, weighted
from .sinks import Sink
from .stages import Stage, active_stages, enter_stage, rate_factor
from .step import backward, evaluate, make_view


@dataclass
class Run:
    """What a run holds from its first stage to its last."""

    model: Any
    recipe: Recipe
    store: Any
    rows: Mixture  # what training rows are drawn from
    out: Path
    eval_views: list[View]
    position: Position
    resumed: Path | None = None  # the checkpoint that is still to be loaded
    sinks: Sequence[Sink] = ()
    world: World = ALONE

    @property
    def root(self) -> Path:
        return self.out / CHECKPOINTS

    @property
    def last_good(self) -> str:
        """Where a stopped run can go on from, as a phrase."""
        found = saved.checkpoints(self.root)
        return f"the last good checkpoint is {found[0]}" if found else "no checkpoint was written yet"

    def write(self, record: dict[str, Any]) -> None:
        for sink in self.sinks:
            sink.write(record)


def run_stages(run: Run) -> None:
    """Train every stage that is left."""
    names = list(active_stages(run.recipe))
    if _must_calibrate(run.model, run.recipe, run.position):
        _calibrate(run)
    if run.recipe.shard:
        shard(run.model, run.world)
    for name in names[names.index(run.position.stage) :]:
        if name != run.position.stage:
            run.position = replace(run.position, stage=name, stage_step=0)
        seed_all(run.recipe.seed + names.index(name))
        stage = enter_stage(run.model, name, run.recipe)
        if run.world.first:
            write_json(run.out / f"trainable-{name}.json", sorted(stage.parameters))
        _run_stage(run, stage)


def check_rows(model: Any, recipe: Recipe, rows: Mixture, position: Position) -> None:
    """Raise UserError, before anything is written, when the data gives no row or too short a one to calibrate on."""
    data = recipe.data
    row = next(batches(rows, data.length, data.batch, recipe.seed)).input_ids
    if not _must_calibrate(model, recipe, position):
        return
    least = 2 * max(slot.delay for slot in model.plan.slots.values())
    if row.shape[1] < least:
        raise UserError(f"data.length is {data.length}; calibration needs {least}, two chunks, or set calibrate=false")


def _must_calibrate(model: Any, recipe: Recipe, position: Position) -> bool:
    return position.step == 0 and recipe.calibrate and untouched(model)


def _calibrate(run: Run) -> None:
    """Fit the slots to the first row of the data; a resumed run finds the result in its weights."""
    row = next(_stream(run, ALONE)).input_ids[:1].to(next(run.model.parameters()).device)
    found = calibrate(run.model, row)
    if run.world.first:
        write_json(run.out / "calibration.json", {"step sizes": found})


def _run_stage(run: Run, stage: Stage) -> None:
    optimizer = _make_optimizer(stage)
    _restore(run, stage, optimizer)
    stream = _stream(run, run.world)
    while run.position.stage_step < stage.settings.steps:
        _train_step(run, stage, optimizer, stream)
        _after_step(run, stage, optimizer)


def _make_optimizer(stage: Stage) -> torch.optim.AdamW:
    groups = [
        {"params": list(g.parameters.values()), "name": g.name, "peak": g.lr, "weight_decay": g.weight_decay}
        for g in stage.groups
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, stage.settings.beta2))


def _names(stage: Stage) -> dict[int, str]:
    return {id(parameter): name for name, parameter in stage.parameters.items()}


def _kept(model: Any, stage: Stage) -> dict[str, Any]:
    """The weights of a checkpoint: what the stage trains, and the memory that it leaves as an earlier stage made it."""
    return {**model.memory_parameters(), **stage.parameters}


def _restore(run: Run, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
    """Put weights, optimizer and generators where the checkpoint has them; a later stage starts without."""
    if run.resumed is None:
        return
    path, run.resumed = run.resumed, None
    stored, kept = saved.read_tensors(path, "weights.safetensors"), _kept(run.model, stage)
    if stage.name == next(iter(active_stages(run.recipe))):
        # Checkpoints once held what the stage trains and no more; before a first stage nothing else had changed.
        kept = {name: p for name, p in kept.items() if name in stored or name in stage.parameters}
    saved.load_weights(kept, stored, str(path))
    saved.load_optimizer(optimizer, _names(stage), saved.read_tensors(path, "optimizer.safetensors"))
    saved.restore_rng(path)


def _stream(run: Run, world: World) -> Iterator[Any]:
    data, place = run.recipe.data, {"rank": world.rank, "world": world.size}
    return batches(run.rows, data.length, data.batch, run.recipe.seed, run.position.cursor, **place)


def _train_step(run: Run, stage: Stage, optimizer: torch.optim.Optimizer, stream: Iterator[Any]) -> None:
    """One optimizer step; the position moves only after the weights did."""
    begin, step = time.perf_counter(), run.position.step + 1
    views, cursor = _next_views(run, stage, stream, step)
    losses = backward(
        run.model,
        views,
        stage,
        lambda parts, view: check_losses(parts, run.model, view, step, run.last_good),
        run.world,
    )
    norms = _clip(stage)
    check_gradients(stage.parameters, math.hypot(*norms.values()), step, run.last_good)
    rates = _set_rates(optimizer, rate_factor(stage.settings, run.position.stage_step))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    counted = int(run.world.sum(torch.tensor(sum(int(view.mask.sum()) for view in views))))
    position = run.position
    run.position = replace(
        position, step=step, stage_step=position.stage_step + 1, cursor=cursor, tokens=position.tokens + counted
    )
    seconds = time.perf_counter() - begin
    run.write(_record(run.position, stage, losses, norms, rates, counted, seconds))


def _next_views(run: Run, stage: Stage, stream: Iterator[Any], step: int) -> tuple[list[View], Any]:
    """The step's batches as views, with weighted targets; rows that lose their windows are views of their own."""
    device, data, settings = next(run.model.parameters()).device, run.recipe.data, stage.settings
    taken = [next(stream) for _ in range(data.accumulate)]
    every = data.batch * run.world.size  # rows of one pass in all processes
    narrow = draw_narrow(settings, run.recipe.seed, step, data.accumulate * every)
    views = []
    for n, batch in enumerate(taken):
        view = make_view(batch, device, data.on_document)
        check_tokens(view.input_ids, run.model.shape.vocab, step)
        view = weighted(view, settings, run.model.plan.common_reach)
        begin = n * every + run.world.rank * data.batch
        rows = narrow[begin : begin + data.batch]
        views += narrowed(view, rows, run.model.plan, settings.narrow_window)
    return views, taken[-1].cursor.to_dict()


def _clip(stage: Stage) -> dict[str, float]:
    """Each group's norm before it is clipped, on its own: a memory that spikes must not quieten LoRA's step."""
    limit = stage.settings.clip or float("inf")
    return {g.name: float(torch.nn.utils.clip_grad_norm_(list(g.parameters.values()), limit)) for g in stage.groups}


def _set_rates(optimizer: torch.optim.Optimizer, factor: float) -> dict[str, float]:
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
    return {group["name"]: group["lr"] for group in optimizer.param_groups}


def _record(
    position: Position,
    stage: Stage,
    losses: dict[str, float],
    norms: dict[str, float],
    rates: dict[str, float],
    counted: int,
    seconds: float,
) -> dict[str, Any]:
    return {
        "step": position.step,
        "stage": position.stage,
        "stage_step": position.stage_step,
        "losses": losses,
        "lr": rates,
        "grad_norm": math.hypot(*norms.values()),
        "grad_norms": norms,
        "tokens": position.tokens,
        "tokens_per_s": counted / seconds,
        "gates": gate_norms(stage),
    }


def gate_norms(stage: Stage) -> dict[str, float]:
    """Norm of every gate by its reader: a gate that stays near 0 means a memory that nobody listens to."""
    return {
        name.removeprefix("backbone.model.").replace(".self_attn", ""): float(parameter.detach().norm())
        for name, parameter in stage.parameters.items()
        if ".readers." in name and "gate" in name
    }


def _after_step(run: Run, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
    position, recipe = run.position, run.recipe
    last = position.stage_step == stage.settings.steps
    if run.eval_views and recipe.eval_every and (last or position.stage_step % recipe.eval_every == 0):
        figures = evaluate(run.model, run.eval_views, stage)
        run.write({"step": position.step, "stage": stage.name, "stage_step": position.stage_step, "eval": figures})
    if last or position.step % recipe.save_every == 0:
        _save(run, stage, optimizer)


def _save(run: Run, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
    run.world.share(lambda: _write_checkpoint(run, stage, optimizer))


def _write_checkpoint(run: Run, stage: Stage, optimizer: torch.optim.Optimizer) -> None:
    state = saved.optimizer_tensors(optimizer, _names(stage))
    try:
        saved.save_checkpoint(run.root, run.position, _kept(run.model, stage), state, run.recipe.keep_last)
    except (OSError, SafetensorError) as error:  # a full disk reaches us as either
        raise TrainingError(f"step {run.position.step}: checkpoint not written: {error}; {run.last_good}") from error
