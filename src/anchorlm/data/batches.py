"""Rows of tokens from one or several sources, in a fixed order that can be left and taken up at any batch.

Row n of a run is a pure function of (seed, n) and of how many rows each source gave before it; the cursor holds
exactly these numbers, so a resumed run sees the same rows as one that never stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from anchorlm.core import UserError
from anchorlm.data.tokens import TokenStore


class Row(NamedTuple):
    """ids [T] int64; mask [T] bool, False on padding; starts [T] bool, True where a document begins.

    weights [T] float32: what each token counts as a target; None when all count 1.
    """

    ids: np.ndarray
    mask: np.ndarray
    starts: np.ndarray
    weights: np.ndarray | None = None


class Source(Protocol):
    """Where rows come from. `size` is None for a generator that never repeats; `name` enters the fingerprint."""

    name: str
    size: int | None

    def sequence(self, index: int, rng: np.random.Generator) -> Row:
        """Row `index`; a generated source draws from `rng` alone, a stored one ignores it."""
        ...


class PackedSource:
    """The whole stream cut into rows of `length`, document starts marked; a last partial row is left out."""

    def __init__(self, store: TokenStore, length: int):
        self.store, self.length = store, length
        self.size = len(store.tokens) // length
        self.name = f"packed:{store.content_hash}:{store.tokenizer_hash}:{length}"
        if not self.size:
            raise UserError(f"data has {len(store.tokens)} tokens; rows of {length} need at least {length}")

    def sequence(self, index: int, rng: np.random.Generator) -> Row:
        begin = index * self.length
        ids = np.asarray(self.store.tokens[begin : begin + self.length], dtype=np.int64)
        starts = np.zeros(self.length, bool)
        first, last = np.searchsorted(self.store.starts, [begin, begin + self.length])
        starts[self.store.starts[first:last] - begin] = True
        starts[0] = True
        return Row(ids, np.ones(self.length, bool), starts)


class DocumentSource:
    """One document a row, padded on the right; a longer document gives several rows, each a fresh start."""

    def __init__(self, store: TokenStore, length: int):
        self.store, self.length = store, length
        self.spans = [
            (begin, min(begin + length, stop))
            for start, stop in zip(store.offsets[:-1].tolist(), store.offsets[1:].tolist(), strict=True)
            for begin in range(start, stop, length)
            if min(begin + length, stop) - begin >= 2
        ]
        self.size = len(self.spans)
        self.name = f"documents:{store.content_hash}:{store.tokenizer_hash}:{length}"
        if not self.size:
            raise UserError("data has no document of 2 tokens or more; a row needs at least 2")

    def sequence(self, index: int, rng: np.random.Generator) -> Row:
        begin, stop = self.spans[index]
        return padded_row(np.asarray(self.store.tokens[begin:stop], np.int64), self.length, self.store.eos or 0)


def padded_row(ids: np.ndarray, length: int, pad: int) -> Row:
    """`ids` as one row of `length` with padding on the right."""
    row = np.full(length, pad, np.int64)
    row[: len(ids)] = ids
    starts = np.zeros(length, bool)
    starts[0] = True
    return Row(row, np.arange(length) < len(ids), starts)


def answer_weights(length: int, answers: Iterable[slice], weight: float, end: float) -> np.ndarray | None:
    """[length] float32: `weight` within the answers, `end` at the token after each, else 1; None when all are 1."""
    if weight == end == 1:
        return None
    weights = np.ones(length, np.float32)
    for answer in answers:
        weights[answer] = weight
        weights[answer.stop : answer.stop + 1] = end
    return weights


class Mixture:
    """Several sources, each with a weight: the probability that a row comes from it."""

    def __init__(self, sources: Sequence[Source], weights: Sequence[float] | None = None):
        self.sources = list(sources)
        weights = [1.0] * len(self.sources) if weights is None else [float(w) for w in weights]
        if not self.sources or len(weights) != len(self.sources) or min(weights) < 0 or sum(weights) <= 0:
            raise UserError(f"mix weights are {weights}; one number of at least 0 for each source, not all 0")
        self.weights = np.asarray(weights) / sum(weights)

    def fingerprint(self, seed: int) -> str:
        """Changes with anything that would change the rows."""
        text = json.dumps([[source.name for source in self.sources], self.weights.tolist(), seed])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Cursor:
    """Where a run stands: `row` rows given in all, `taken[s]` of them from source s. JSON-able by `to_dict`."""

    seed: int
    row: int
    taken: tuple[int, ...]
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "taken": list(self.taken)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cursor:
        return cls(values["seed"], values["row"], tuple(values["taken"]), values["fingerprint"])


class Batch(NamedTuple):
    """One step's rows. `cursor` stands after this batch: store it with the step that used the batch.

    input_ids [B, T] int64; mask [B, T] bool, False on padding; document_starts [B, T] bool
    weights [B, T] float32, what each token counts as a target; None when all count 1
    """

    input_ids: torch.Tensor
    mask: torch.Tensor
    document_starts: torch.Tensor
    cursor: Cursor
    weights: torch.Tensor | None = None


def batches(
    data: TokenStore | Source | Mixture,
    length: int,
    batch: int,
    seed: int = 0,
    start_cursor: Cursor | dict | None = None,
    *,
    packing: str = "concatenate",
    rank: int = 0,
    world: int = 1,
) -> Iterator[Batch]:
    """Endless batches of `batch` rows of `length` tokens, shuffled anew in each epoch of each source.

    A bare store is packed ("concatenate") or split by document ("documents"). With `world` processes each step takes
    batch x world rows and this process gets those of `rank`; the cursor counts all of them, so it may be resumed
    with another number of processes. Raises UserError when the cursor belongs to other data, weights or seed.
    """
    mixture = _mixture(data, length, packing)
    cursor = _start(mixture, seed, start_cursor)
    while True:
        rows, cursor = _take(mixture, cursor, batch * world, range(rank * batch, (rank + 1) * batch))
        parts = ([row.ids for row in rows], [row.mask for row in rows], [row.starts for row in rows])
        ids, mask, starts = (torch.from_numpy(np.stack(part)) for part in parts)
        yield Batch(ids, mask, starts, cursor, _weights(rows, length))


def _weights(rows: list[Row], length: int) -> torch.Tensor | None:
    if all(row.weights is None for row in rows):
        return None
    ones = np.ones(length, np.float32)
    return torch.from_numpy(np.stack([ones if row.weights is None else row.weights for row in rows]))


def _mixture(data: TokenStore | Source | Mixture, length: int, packing: str) -> Mixture:
    if isinstance(data, Mixture):
        return data
    if not isinstance(data, TokenStore):
        return Mixture([data])
    if packing not in ("concatenate", "documents"):
        raise UserError(f"packing {packing!r} is unknown; allowed: concatenate, documents")
    return Mixture([(PackedSource if packing == "concatenate" else DocumentSource)(data, length)])


def _start(mixture: Mixture, seed: int, cursor: Cursor | dict | None) -> Cursor:
    fingerprint = mixture.fingerprint(seed)
    if cursor is None:
        return Cursor(seed, 0, (0,) * len(mixture.sources), fingerprint)
    cursor = Cursor.from_dict(cursor) if isinstance(cursor, dict) else cursor
    if cursor.fingerprint != fingerprint:
        raise UserError(
            f"checkpoint cursor {cursor.fingerprint} belongs to other data, length, mix or seed "
            f"(these give {fingerprint}); resume with what the run was started with"
        )
    return cursor


def _take(mixture: Mixture, cursor: Cursor, count: int, wanted: range) -> tuple[list[Row], Cursor]:
    """The rows number `wanted` of the next `count`, and the cursor after all of them."""
    rows, taken = [], list(cursor.taken)
    for offset in range(count):
        rng = np.random.default_rng([cursor.seed, cursor.row + offset])
        which = int(rng.choice(len(mixture.sources), p=mixture.weights))
        if offset in wanted:
            source = mixture.sources[which]
            rows.append(source.sequence(_index(source, which, taken[which], cursor.seed), rng))
        taken[which] += 1
    return rows, replace(cursor, row=cursor.row + count, taken=tuple(taken))


def _index(source: Source, which: int, taken: int, seed: int) -> int:
    """Which row of the source its `taken`-th turn gives: every row once per epoch, in an order of that epoch."""
    if source.size is None:
        return taken
    epoch, position = divmod(taken, source.size)
    return int(_order(source.size, seed, which, epoch)[position])


def _order(size: int, seed: int, which: int, epoch: int) -> np.ndarray:
    key = (size, seed, which, epoch)
    if key not in _ORDERS:
        _ORDERS.clear()
        _ORDERS[key] = np.random.default_rng([seed, which, epoch, 1]).permutation(size)
    return _ORDERS[key]


_ORDERS: dict[tuple[int, int, int, int], np.ndarray] = {}
