"""How far back a text last used what a token needs: targets that a window alone cannot predict, but a memory could."""

from __future__ import annotations

import numpy as np


def reuse_distance(ids: np.ndarray, document: np.ndarray | None = None) -> np.ndarray:
    """[T] int64: tokens since the bigram that ends here last ended; 0 where it is new.

    document [T]: number of the document that each token belongs to; a bigram across two documents is none, and only
    occurrences in the same document count. None: all tokens are one document.
    """
    found = np.zeros(len(ids), np.int64)
    if len(ids) < 2:
        return found
    document = np.zeros(len(ids), np.int64) if document is None else document
    place = np.flatnonzero(document[1:] == document[:-1]) + 1
    order = place[np.lexsort((place, ids[place], ids[place - 1], document[place]))]
    now, before = order[1:], order[:-1]
    same = (ids[now] == ids[before]) & (ids[now - 1] == ids[before - 1]) & (document[now] == document[before])
    found[now[same]] = (now - before)[same]
    return found


def cross_window(ids: np.ndarray, window: int, document: np.ndarray | None = None) -> np.ndarray:
    """[T] bool: the bigram ending here occurred before, and its latest occurrence lies more than `window` back."""
    return reuse_distance(ids, document) > window


def distance_bins(window: int, context: int) -> dict[str, tuple[int, int]]:
    """Name -> (above, up to) of the distances (0, W], (W, 2W], (2W, 4W], doubling until the context is covered."""
    edges = [0, window]
    while edges[-1] < context - 1:
        edges.append(min(2 * edges[-1], context - 1))
    return {f"{low}-{high}": (low, high) for low, high in zip(edges[:-1], edges[1:], strict=True)}
