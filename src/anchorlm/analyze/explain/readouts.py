"""What every reader is answered where the window alone cannot know: at cross-window targets of running text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anchorlm.core import UserError
from anchorlm.data.crossing import cross_window
from anchorlm.hf import AnchorForCausalLM
from anchorlm.hf.branches import answers_seen

from .job import Job

MOST = 800  # targets; pairs of layers are compared by inner products of all pairs of targets

Reader = tuple[int, str]


@dataclass(frozen=True)
class Readouts:
    """answers: (layer, slot) -> [n, H, d] float32, before map and gate; document: [n] of which piece each is."""

    answers: dict[Reader, Tensor]
    document: np.ndarray

    def __len__(self) -> int:
        return len(self.document)


@torch.inference_mode()
def read_outs(model: AnchorForCausalLM, ids: np.ndarray, at: np.ndarray) -> dict[Reader, Tensor]:
    """(layer, slot) -> what the reader is answered at the places `at` [n] of a text ids [T]: [n, H, d]."""
    found: dict[Reader, Tensor] = {}
    chosen = torch.from_numpy(at)

    def see(layer: int, slot: str, answers: Tensor) -> None:
        found[layer, slot] = answers[0].transpose(0, 1)[chosen.to(answers.device)].float().cpu()

    with answers_seen(model, see):
        model.hidden(torch.from_numpy(ids)[None].to(next(model.parameters()).device), block=len(ids))
    return found


def collect(job: Job, pieces: Sequence[np.ndarray], what: str) -> Readouts:
    """The read-outs from which cross-window targets are predicted, evenly thinned to MOST.

    A place where some reader is answered nothing is left out. Raises UserError when fewer than 4 are left.
    """
    window, parts, document = job.target.window(job.options), [], []
    for number, piece in enumerate(pieces):
        found = read_outs(job.model, piece, np.flatnonzero(cross_window(piece, window)) - 1)
        full = torch.stack([answer.flatten(1).any(1) for answer in found.values()]).all(0)
        parts.append({reader: answer[full] for reader, answer in found.items()})
        document += [number] * int(full.sum())
        job.tell(what, number + 1, len(pieces))
    answers = {reader: torch.cat([part[reader] for part in parts]) for reader in job.target.readers()}
    count = len(document)
    if count < 4:
        raise UserError(
            f"data has {count} cross-window targets in {len(pieces)} documents of {job.options.context} tokens; "
            "at least 4 are needed: give more text, or a longer --context"
        )
    kept = np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(int))
    chosen = torch.from_numpy(kept)
    return Readouts({reader: answer[chosen] for reader, answer in answers.items()}, np.asarray(document)[kept])
