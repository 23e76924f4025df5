"""What readers need of one slot in one call, whichever way it was written.

Shapes: B rows, H state heads, Hq query heads (Hq = R H), T tokens, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.chunks import Chunks
from ..ops.partials import Partial, concatenate
from .base import Memory, Weights, check_read


@dataclass(frozen=True)
class Run:
    """Tokens first .. last - 1 read `state`; written says for each row whether anything stands in it."""

    first: int
    last: int
    state: Weights
    written: tuple[bool, ...]


@dataclass(frozen=True)
class Trace:
    """A slot written by the chunk: the states at its chunk boundaries.

    states[i] is the readable state after i chunks of this call.
    """

    rule: type[Memory]
    chunks: Chunks
    states: tuple[Weights, ...]

    def runs(self) -> list[Run]:
        """The tokens of the call, cut where a row changes the state it reads."""
        return [self._run(first, last, seen) for first, last, seen in self.chunks.reads()]

    def _run(self, first: int, last: int, seen: tuple[int, ...]) -> Run:
        written = tuple(w + s > 0 for w, s in zip(self.chunks.written, seen, strict=True))
        if len(set(seen)) == 1:
            return Run(first, last, self.states[seen[0]], written)
        names = self.states[0]
        state = {n: torch.stack([self.states[s][n][row] for row, s in enumerate(seen)]) for n in names}
        return Run(first, last, state, written)

    @property
    def empty(self) -> bool:
        """Nothing was written that any token could read."""
        return not any(any(flags) for _, _, flags in self._flags())

    def written(self, device: torch.device) -> Tensor | None:
        """[B, T]: which tokens have something to read; None when all have."""
        flags = self._flags()
        if all(all(rows) for _, _, rows in flags):
            return None
        return torch.cat([torch.tensor(rows, device=device)[:, None].expand(-1, b - a) for a, b, rows in flags], 1)

    def _flags(self) -> list[tuple[int, int, tuple[bool, ...]]]:
        """Runs of tokens, and for each row whether anything stands in the state that it reads."""
        written = self.chunks.written
        return [
            (first, last, tuple(w + s > 0 for w, s in zip(written, seen, strict=True)))
            for first, last, seen in self.chunks.reads()
        ]

    def read(self, queries: Tensor, silent: bool) -> Partial:
        """The answers to queries [B, Hq, T, f]; silent: 0 is answered where nothing was written."""
        return concatenate([self._answer(run, queries[:, :, run.first : run.last], silent) for run in self.runs()])

    def _answer(self, run: Run, queries: Tensor, silent: bool) -> Partial:
        batch, heads, tokens, width = queries.shape
        if silent and not any(run.written) and not self.rule.streams:  # a learned start may be freed by sharding by now
            return Partial(torch.zeros_like(queries))
        state_heads = next(iter(run.state.values())).shape[1]
        asked = queries.reshape(batch, state_heads, -1, width)
        found = self.rule.read(run.state, asked)
        check_read(self.rule, found, asked.shape[:3] if self.rule.streams else asked.shape)
        return Partial(*(None if x is None else x.reshape(batch, heads, tokens, -1) for x in found))


@dataclass(frozen=True)
class StreamTrace:
    """A slot written token by token. answers(q [B, H, R, T, f]) gives the Partial [B, H, R, T, ...] of every token.

    known: [B or 1, T], which tokens have something to read; None when all have.
    """

    answers: Callable[[Tensor], Partial]
    heads: int
    known: Tensor | None

    @property
    def empty(self) -> bool:
        return self.known is not None and not bool(self.known.any())

    def written(self, device: torch.device) -> Tensor | None:
        return None if self.known is None or bool(self.known.all()) else self.known

    def read(self, queries: Tensor, silent: bool) -> Partial:
        """The answers to queries [B, Hq, T, f]; silent: 0 is answered where nothing was written."""
        found = self.answers(queries.unflatten(1, (self.heads, -1)))
        return Partial(*(None if x is None else x.flatten(1, 2) for x in found))
