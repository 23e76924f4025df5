"""Which tokens a chunk holds and which state a token reads, for rows that may stand at different positions.

A slot with chunk C and lag m has written max(0, p // C - m) chunks when a row has read p tokens. Its buffer holds the
tokens after those, so the buffer and the new tokens together are one stream that starts on a chunk boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .rows import Span


@dataclass(frozen=True)
class Chunks:
    """The chunk arithmetic of one call. `written[i]` chunks stand in row i before it, `commits[i]` more after it."""

    chunk: int
    lag: int
    span: Span

    def _written(self, position: int) -> int:
        return max(0, position // self.chunk - self.lag)

    @property
    def written(self) -> tuple[int, ...]:
        return tuple(self._written(p) for p in self.span.start)

    @property
    def filled(self) -> tuple[int, ...]:
        """Tokens in the buffer before the call."""
        return tuple(p - w * self.chunk for p, w in zip(self.span.start, self.written, strict=True))

    @property
    def commits(self) -> tuple[int, ...]:
        return tuple(self._written(p) - w for p, w in zip(self.span.end, self.written, strict=True))

    def join(self, buffer: Tensor | None, new: Tensor) -> Tensor:
        """The stream [B, S, ...] of buffer [B, r, ...] and new tokens [B, T, ...], each row without a hole."""
        if buffer is None or max(self.filled) == 0:
            return new
        if self.span.uniform:
            return torch.cat([buffer[:, : self.filled[0]], new], 1)
        return take(torch.cat([buffer, new], 1), self._join_index(buffer.shape[1], new.device))

    def _join_index(self, held: int, device: torch.device) -> Tensor:
        filled = torch.tensor(self.filled, device=device)[:, None]
        column = torch.arange(max(self.filled) + self.span.width, device=device)
        return torch.where(column < filled, column, column - filled + held).clamp(max=held + self.span.width - 1)

    def rest(self, stream: Tensor) -> Tensor:
        """What stays in the buffer after the call: each row from its first unwritten token on, [B, r', ...]."""
        kept = [f + n - c * self.chunk for f, n, c in zip(self.filled, self.span.length, self.commits, strict=True)]
        begin = [c * self.chunk for c in self.commits]
        if len(set(begin)) == 1 and len(set(kept)) == 1:
            return stream[:, begin[0] : begin[0] + kept[0]]
        column = torch.arange(max(kept), device=stream.device)
        index = torch.tensor(begin, device=stream.device)[:, None] + column
        return take(stream, index.clamp(max=stream.shape[1] - 1))

    def first_positions(self, device: torch.device | str) -> Tensor:
        """Position in the text of each stream's first token: [B, 1]."""
        return torch.tensor(self.written, device=device)[:, None] * self.chunk

    def reads(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Runs of new tokens (first, last + 1, state) during which no row changes the state it reads.

        `state` gives for each row how many of this call's commits it sees.
        """
        cuts = {0, self.span.width}
        for start in set(self.span.start):
            cuts.update(range(-start % self.chunk, self.span.width, self.chunk))
        edges = sorted(cuts)
        return [(a, b, self._seen(a)) for a, b in zip(edges[:-1], edges[1:], strict=True)]

    def _seen(self, offset: int) -> tuple[int, ...]:
        """Commits of this call that a token `offset` after the start may read; filler reads no more than exist."""
        pairs = zip(self.span.start, self.written, self.commits, strict=True)
        return tuple(min(self._written(p + offset) - w, c) for p, w, c in pairs)


def take(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, i]] for x [B, S, ...] and index [B, N]."""
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[rows, index]
