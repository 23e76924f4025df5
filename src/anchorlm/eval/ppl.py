"""Perplexity over real text, in fixed-length documents, with the parts of it that tell memory from none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anchorlm.core import UserError
from anchorlm.data import TokenStore
from anchorlm.data.crossing import distance_bins, reuse_distance
from anchorlm.eval.scoring import token_nll
from anchorlm.eval.stats import bootstrap_ratio, sign_flip

GROUPS = ("all", "first_half", "second_half", "cross_window")
BY = {"by_position": "position ", "by_distance": "last seen "}  # further groups, in bins that double
GROUPING = 2  # raise it whenever the groups of a document change
FIRST_BIN = 128  # tokens, for models without a window


def cut(store: TokenStore, context: int, limit: int | None = None, tails: bool = False) -> list[np.ndarray]:
    """Pieces of `context` tokens, none across two documents, each led by the tokenizer's bos if it has one.

    A document's rest shorter than `context` is left out unless `tails`. `limit` keeps that many, spread evenly over
    the whole text. Raises UserError when no piece is long enough.
    """
    if context < 2:
        raise UserError(f"--context is {context}; perplexity needs at least 2 tokens")
    head = [] if store.bos is None else [store.bos]
    body = context - len(head)
    spans = _spans(store, body, body if not tails else 2 - len(head))
    if not spans:
        longest = int(np.diff(store.offsets).max()) - (store.eos is not None)
        raise UserError(f"--data: the longest document has {longest} tokens; context {context} needs at least {body}")
    if limit and limit < len(spans):
        spans = [spans[i * len(spans) // limit] for i in range(limit)]
    return [np.concatenate([head, store.tokens[begin:stop]]).astype(np.int64) for begin, stop in spans]


def _spans(store: TokenStore, body: int, least: int) -> list[tuple[int, int]]:
    """Begin and end in the stream of every piece of `body` tokens, or of at least `least` at a document's end."""
    ends = store.offsets[1:] - (store.eos is not None)
    return [
        (begin, min(begin + body, stop))
        for start, stop in zip(store.offsets[:-1].tolist(), ends.tolist(), strict=True)
        for begin in range(start, stop, body)
        if min(begin + body, stop) - begin >= least
    ]


def document_sums(ids: np.ndarray, nll: np.ndarray, context: int, window: int | None) -> dict[str, list[float]]:
    """For each group, [sum of nll, number of targets] of one piece; nll [T - 1] belongs to ids[1:].

    Positions count from 0; "last seen" is how far back the bigram that ends at the target ended before.
    """
    position, far = np.arange(1, len(ids)), reuse_distance(ids)[1:]
    chosen = {"all": position > 0, "first_half": position < context // 2, "second_half": position >= context // 2}
    chosen["cross_window"] = far > window if window else position < 0
    chosen["last seen never"] = far == 0
    for name, (low, high) in distance_bins(window or FIRST_BIN, context).items():
        chosen[f"position {name}"] = (position > low) & (position <= high)
        chosen[f"last seen {name}"] = (far > low) & (far <= high)
    return {name: [float(nll[where].sum()), int(where.sum())] for name, where in chosen.items()}


def score(
    model: Any, pieces: list[np.ndarray], context: int, *, window: int | None = None, batch: int = 1, block: int = 512
) -> list[dict[str, list[float]]]:
    """`document_sums` of every piece, in order. The figures do not depend on `batch` or `block`."""
    rows = []
    for begin in range(0, len(pieces), batch):
        group = pieces[begin : begin + batch]
        ids = torch.zeros(len(group), max(map(len, group)), dtype=torch.long)
        for row, piece in zip(ids, group, strict=True):
            row[: len(piece)] = torch.from_numpy(piece)
        nll = token_nll(model, ids, block).double().numpy()
        rows += [document_sums(p, n[: len(p) - 1], context, window) for p, n in zip(group, nll, strict=True)]
    return rows


def summary(rows: list[dict[str, list[float]]], bytes_per_token: float, seed: int = 0) -> dict[str, Any]:
    """Perplexity and 95 % interval of each group, and bits per byte of the whole."""
    found = {name: _group([row[name] for row in rows], seed) for name in rows[0]}
    groups = {name: found[name] for name in GROUPS if found[name]["tokens"]}
    by = {
        kind: [{"name": name, **group} for name, group in found.items() if name.startswith(head) and group["tokens"]]
        for kind, head in BY.items()
    }
    bits = math.log(groups["all"]["ppl"]) / math.log(2) / bytes_per_token
    return {"metric": "perplexity", "value": groups["all"]["ppl"], "interval": groups["all"]["interval"],
            "n": len(rows), "unit": "documents", "groups": groups, **by, "bits_per_byte": bits}  # fmt: skip


def _group(sums: list[list[float]], seed: int) -> dict[str, Any]:
    """Perplexity, interval and targets of one group over the documents; perplexity None where it has no target."""
    nll, counts = np.array(sums).T
    if not counts.sum():
        return {"ppl": None, "interval": None, "tokens": 0}
    ends = bootstrap_ratio(nll, counts, seed)
    interval = ends and [math.exp(end) for end in ends]
    return {"ppl": math.exp(nll.sum() / counts.sum()), "interval": interval, "tokens": int(counts.sum())}


def ratio(rows: list[dict], others: list[dict], seed: int = 0) -> dict[str, Any]:
    """Perplexity of `rows` over that of `others` on the same documents, with a paired 95 % interval and p-value."""
    ours, theirs = (np.array([row["all"] for row in side]) for side in (rows, others))
    gap, counts = ours[:, 0] - theirs[:, 0], ours[:, 1]
    ends = bootstrap_ratio(gap, counts, seed)
    interval = ends and [math.exp(end) for end in ends]
    return {"value": math.exp(gap.sum() / counts.sum()), "interval": interval, "p": sign_flip(gap, seed), "n": len(gap)}


def perplexity(
    model: Any,
    store: TokenStore,
    context: int,
    *,
    window: int | None = None,
    limit: int | None = None,
    batch: int = 1,
    block: int = 512,
    seed: int = 0,
    tails: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Perplexity of `model` on pieces of `context` tokens of the store; each piece is scored from its token 1.

    `window` adds the cross-window targets: tokens whose bigram was last seen further back than that.
    `progress(done, total)` counts pieces.
    """
    pieces, rows = cut(store, context, limit, tails), []
    for begin in range(0, len(pieces), batch):
        rows += score(model, pieces[begin : begin + batch], context, window=window, batch=batch, block=block)
        if progress:
            progress(len(rows), len(pieces))
    return {**summary(rows, store.bytes_per_token, seed), "rows": rows, "context": context, "window": window}
