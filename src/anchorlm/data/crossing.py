"""Cross-window targets: tokens that a window alone cannot predict from their last occurrence, but a memory could."""

from __future__ import annotations

import numpy as np


def cross_window(ids: np.ndarray, window: int, document: np.ndarray | None = None) -> np.ndarray:
    """[T] bool: the bigram ending here occurred before, and its latest occurrence lies more than `window` back.

    document [T]: number of the document that each token belongs to; a bigram across two documents is none, and only
    occurrences in the same document count. None: all tokens are one document.
    """
    found = np.zeros(len(ids), bool)
    if len(ids) < 2:
        return found
    document = np.zeros(len(ids), np.int64) if document is None else document
    place = np.flatnonzero(document[1:] == document[:-1]) + 1
    order = place[np.lexsort((place, ids[place], ids[place - 1], document[place]))]
    now, before = order[1:], order[:-1]
    same = (ids[now] == ids[before]) & (ids[now - 1] == ids[before - 1]) & (document[now] == document[before])
    found[now[same & (now - before > window)]] = True
    return found
