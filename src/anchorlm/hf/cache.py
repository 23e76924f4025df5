"""A hybrid's state in the form that transformers' `generate` carries around."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor
from transformers import Cache

from ..describe import PARTS
from ..plan import Plan
from ..state import ModelState


class StateCache(Cache):
    """Holds one `ModelState`. `tokens`: input columns read so far, padding included.

    A recurrent state cannot be rolled back: take a `snapshot` and `restore` it.
    """

    def __init__(self, plan: Plan):
        self.layers, self.layer_class_to_replicate, self.offloading = [], None, False
        self.plan, self.state, self.tokens = plan, None, 0

    state: ModelState | None
    tokens: int

    def advance(self, state: ModelState, columns: int) -> None:
        """Take the state after a call that read `columns` more input columns."""
        self.state, self.tokens = state, self.tokens + columns

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.tokens

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.plan.layers)

    def nbytes(self) -> dict[str, int]:
        """Bytes held now by all rows, by the parts of `describe.state_bytes` ("full attention" is the whole of it)."""
        total: dict[str, int] = dict.fromkeys((*PARTS[:-1], "full attention"), 0)
        if self.state is None:
            return total
        total["counters"] = self.state.position.nbytes
        for reach, layer in zip(self.plan.layers, self.state.attention, strict=True):
            for heads, held in layer.items():
                sizes, whole = held.parts(), reach.of(heads[0]).kind == "full"
                total["full attention" if whole else "window ring"] += sizes["keys and values"]
                total["sinks"] += sizes["sinks"]
        for slot in self.state.slots.values():
            for name, size in slot.parts().items():
                total[name] += size
        return total

    def snapshot(self) -> tuple[ModelState | None, int]:
        """The present state as a value. No call changes a state in place, so nothing is copied."""
        return self.state, self.tokens

    def restore(self, snapshot: tuple[ModelState | None, int]) -> None:
        """Back to a snapshot, exactly."""
        self.state, self.tokens = snapshot

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row beam_idx[i] was."""
        if self.state is not None:
            self.state = self.state.select(beam_idx)

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was; the name transformers uses is `reorder_cache`."""
        self.reorder_cache(rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.reorder_cache(torch.arange(self.state.rows).repeat_interleave(repeats))

    def reset(self, rows: Tensor | list[int] | None = None) -> None:
        """Forget everything, or only the given rows, which then start a new text."""
        if rows is None:
            self.state, self.tokens = None, 0
        elif self.state is not None:
            position = self.state.position.clone()
            chosen = rows if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.long)
            position[chosen.to(position.device)] = 0
            self.state = self.state.with_positions(position)

    def crop(self, tokens_to_remove: int) -> None:
        """Only nothing can be cropped. Raises ValueError otherwise: a recurrent state cannot be rolled back."""
        if tokens_to_remove:
            self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise ValueError("a recurrent state cannot be cropped; take cache.snapshot() first and cache.restore() it")

    @property
    def batch_size(self) -> int:
        return -1 if self.state is None else self.state.rows

    @property
    def is_croppable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self)

    @property
    def is_linear(self) -> list[bool]:
        return [False] * len(self)

    def __repr__(self) -> str:
        return f"StateCache(tokens={self.tokens}, bytes={sum(self.nbytes().values())})"
