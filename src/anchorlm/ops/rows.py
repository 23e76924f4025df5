"""From padded, packed input to plain rows and back.

A row is one text without holes, left-aligned. A masked token is dropped before anything sees it, so padding on any
side cannot move a state. A packed document becomes a row of its own, so a reset cannot leak.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..state import ModelState


@dataclass(frozen=True)
class Span:
    """The tokens of one call as rows: row i continues at position start[i] with length[i] new tokens.

    Tokens beyond a row's length are filler that nothing later may see.
    """

    start: tuple[int, ...]
    length: tuple[int, ...]
    width: int

    @property
    def uniform(self) -> bool:
        """Every row stands at the same position and fills the whole width."""
        return len(set(self.start)) == 1 and all(n == self.width for n in self.length)

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(s + n for s, n in zip(self.start, self.length, strict=True))

    def positions(self, device: torch.device | str) -> Tensor:
        """Position of each token: [1, T] when all rows agree, else [B, T]."""
        starts = self.start[:1] if len(set(self.start)) == 1 else self.start
        return torch.tensor(starts, device=device)[:, None] + torch.arange(self.width, device=device)

    def real(self, device: torch.device | str) -> Tensor:
        """Which tokens are no filler: [B, T]."""
        return torch.arange(self.width, device=device) < torch.tensor(self.length, device=device)[:, None]


@dataclass(frozen=True)
class Rows:
    """How input tokens map to rows. index: [R, T'] flat input positions, -1 for filler; source: [R] input row."""

    index: Tensor
    length: tuple[int, ...]
    source: Tensor
    fresh: Tensor
    last: Tensor
    shape: tuple[int, int]

    def gather(self, x: Tensor) -> Tensor:
        """[B, T, D] to [R, T', D]; filler is zero and passes no gradient."""
        rows = x.flatten(0, 1)[self.index.clamp(min=0)]
        return torch.where((self.index >= 0)[..., None], rows, rows.new_zeros(()))

    def scatter(self, rows: Tensor) -> Tensor:
        """[R, T', D] back to [B, T, D]; masked positions are zero."""
        kept = self.index >= 0
        flat = rows.new_zeros(self.shape[0] * self.shape[1], rows.shape[-1])
        return flat.index_copy(0, self.index[kept], rows[kept]).unflatten(0, self.shape)

    def enter(self, state: ModelState) -> ModelState:
        """The state each row starts from: its input row's, at position 0 when the row is a fresh document."""
        state = state.select(self.source)
        return state.with_positions(torch.where(self.fresh, 0, state.position))

    def leave(self, state: ModelState) -> ModelState:
        """The state of each input row after its last document."""
        return state.select(self.last)


def arrange(mask: Tensor | None, document_starts: Tensor | None) -> Rows | None:
    """Plan the rows of an input. mask, document_starts: [B, T] or None. None when the input already is plain rows.

    A row with no token stays as a row of length 0, so that its state is kept.
    """
    mask = None if mask is None or bool(mask.all()) else mask.bool()
    starts = None if document_starts is None or not bool(document_starts.any()) else document_starts.bool()
    if mask is None and starts is None:
        return None
    given = mask if mask is not None else starts
    assert given is not None
    batch, width = given.shape
    keep = torch.ones_like(given) if mask is None else mask
    begins = torch.zeros_like(keep) if starts is None else starts
    pieces = [piece for row in range(batch) for piece in _pieces(row, keep[row], begins[row])]
    index = torch.full((len(pieces), max(1, max(len(p.tokens) for p in pieces))), -1, device=given.device)
    for i, piece in enumerate(pieces):
        index[i, : len(piece.tokens)] = piece.tokens + piece.row * width
    source = torch.tensor([p.row for p in pieces], device=given.device)
    ends = {piece.row: i for i, piece in enumerate(pieces)}
    last = torch.tensor([ends[row] for row in range(batch)], device=given.device)
    fresh = torch.tensor([p.fresh for p in pieces], device=given.device)
    return Rows(index, tuple(len(p.tokens) for p in pieces), source, fresh, last, (batch, width))


@dataclass(frozen=True)
class _Piece:
    row: int
    tokens: Tensor
    fresh: bool


def _pieces(row: int, keep: Tensor, begins: Tensor) -> list[_Piece]:
    """The documents of one input row, in order; the first continues the row's state unless it begins there.

    A document that begins at a masked token begins at the next real one, or after the call when there is none.
    """
    tokens = keep.nonzero()[:, 0]
    cuts = sorted({int(keep[:column].sum()) for column in begins.nonzero()[:, 0].tolist()})
    bounds = [0, *[c for c in cuts if c > 0], len(tokens)]
    starts_fresh = {0} if cuts and cuts[0] == 0 else set()
    return [
        _Piece(row, tokens[a:b], fresh=a in starts_fresh or a > 0) for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]
