"""The rows of a step: texts and generated rows mixed, weighted targets, and which rows lose their windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..core import UserError
from ..data import DocumentSource, Mixture, PackedSource, TokenStore
from ..data.batches import Source
from ..data.crossing import cross_window
from ..data.needles import Needles, NeedleSource
from ..data.recall import RecallSource
from ..plan import Plan
from ..settings import DataSettings, StageSettings
from .losses import View


def mixture(data: DataSettings, store: TokenStore, tokenizer: Any) -> Mixture:
    """The sources of training rows: the texts, and each generated kind that has a share.

    Raises UserError when the texts or the length cannot give a row of each.
    """
    shares = {kind: share for kind, share in data.mix.model_dump().items() if share}
    sources: list[Source] = []
    if sum(shares.values()) < 1:
        sources.append((PackedSource if data.packing == "concatenate" else DocumentSource)(store, data.length))
    sources += [_generated(kind, data, store, tokenizer) for kind in shares]
    rest = [max(0.0, 1.0 - sum(shares.values()))] if len(sources) > len(shares) else []
    return Mixture(sources, [*rest, *shares.values()])


def _generated(kind: str, data: DataSettings, store: TokenStore, tokenizer: Any) -> Source:
    weights = data.mix_answer_weight, data.mix_end_weight
    if kind == "recall":
        source: Source = RecallSource(store, tokenizer, data.length, *weights)
    else:
        source = NeedleSource(Needles(store, tokenizer, templates="train"), data.length, *weights)
    source.sequence(0, np.random.default_rng(0))  # too short a row or a text is told before the run starts
    return source


def check_weights(stages: dict[str, StageSettings], plan: Plan) -> None:
    """Raise UserError when a stage uses the window of a plan that has none."""
    for name, stage in stages.items():
        if stage.cross_window_weight != 1 and not plan.common_reach:
            raise UserError(
                f"{name}.cross_window_weight is {stage.cross_window_weight} but no layer of the plan has a window; "
                "leave it at 1"
            )
        if stage.window_dropout and not plan.common_reach:
            raise UserError(
                f"{name}.window_dropout is {stage.window_dropout} but no layer of the plan has a window; leave it at 0"
            )


def weighted(view: View, stage: StageSettings, window: int | None) -> View:
    """The view with the stage's weight on cross-window targets, times what its rows' targets count already."""
    if stage.cross_window_weight == 1 or window is None:
        return view
    found = torch.from_numpy(crossing(view, window)).to(view.input_ids.device)
    plain = torch.ones_like(found, dtype=torch.float32) if view.weights is None else view.weights
    return replace(view, weights=torch.where(found, stage.cross_window_weight * plain, plain))


def crossing(view: View, window: int) -> np.ndarray:
    """[B, T] bool: cross-window targets of every row, distances counted in tokens that are not masked."""
    ids, mask = view.input_ids.cpu().numpy(), view.mask.cpu().numpy()
    starts = np.zeros_like(mask) if view.starts is None else view.starts.cpu().numpy()
    found = np.zeros_like(mask)
    for row in range(len(ids)):
        real, document = mask[row], starts[row].cumsum()
        found[row, real] = cross_window(ids[row, real], window, document[real])
    return found


def narrowed(view: View, rows: Sequence[bool], plan: Plan, share: float) -> list[View]:
    """The view as one or two: rows that keep their windows, and those marked in `rows`, run with narrower ones."""
    if not any(rows):
        return [view]
    chosen = torch.tensor(rows, device=view.input_ids.device)
    parts = [(~chosen, None), (chosen, plan.narrowed(share))]
    return [_part(view, keep, under) for keep, under in parts if bool(keep.any())]


def _part(view: View, keep: torch.Tensor, plan: Plan | None) -> View:
    starts, weights = (None if x is None else x[keep] for x in (view.starts, view.weights))
    return View(view.input_ids[keep], view.mask[keep], starts, weights=weights, plan=plan)


def draw_narrow(stage: StageSettings, seed: int, step: int, rows: int) -> list[bool]:
    """Which of a step's rows are run with narrower windows: a function of seed and step alone."""
    if not stage.window_dropout:
        return [False] * rows
    return (np.random.default_rng([seed, step, 2]).random(rows) < stage.window_dropout).tolist()
