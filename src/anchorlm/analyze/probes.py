"""What a placement is measured on: running text split by how far back each token's word pair lies, and needles."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anchorlm.core import UserError
from anchorlm.data import TokenStore
from anchorlm.data.crossing import distance_bins, reuse_distance
from anchorlm.data.needles import Needles
from anchorlm.eval.ppl import cut

TEXT, BEYOND, NEEDLE = "all", "beyond", "needle"  # every token; those whose word pair left the window; answers
FEWEST = 2  # documents; an interval over one says nothing


@dataclass(frozen=True)
class Probe:
    """One sequence and its targets.

    ids [T] int64; targets [n] positions whose token is predicted from those before it; groups: name -> [n] bool.
    exact: the targets are one answer, right as a whole or not.
    """

    ids: np.ndarray
    targets: np.ndarray
    groups: dict[str, np.ndarray]
    exact: bool = False

    @cached_property
    def digest(self) -> str:
        """Changes with the ids, the targets and the groups."""
        parts = [self.ids.astype(np.int64), self.targets.astype(np.int64), *self.groups.values()]
        body = b"".join(np.ascontiguousarray(part).tobytes() for part in parts) + " ".join(self.groups).encode()
        return hashlib.sha256(body).hexdigest()[:16]


def text_probe(ids: np.ndarray, window: int, context: int) -> Probe:
    """Every token but the first is a target; groups: all, new, one a distance bin, and beyond (the window)."""
    far = reuse_distance(ids)[1:]
    groups = {TEXT: np.ones(len(far), bool), "new": far == 0}
    groups |= {name: (far > low) & (far <= high) for name, (low, high) in distance_bins(window, context).items()}
    return Probe(ids, np.arange(1, len(ids)), groups | {BEYOND: far > window})


def needle_probe(needles: Needles, context: int, depth: float, rng: np.random.Generator) -> Probe:
    """A prompt of `context` tokens with its answer behind it; the answer's tokens are the targets."""
    prompt = needles.make(context, depth, rng)
    targets = len(prompt.ids) + np.flatnonzero(prompt.counted)
    ids = np.concatenate([prompt.ids, prompt.answer_ids])
    return Probe(ids, targets, {NEEDLE: np.ones(len(targets), bool)}, exact=True)


def rounds(
    store: TokenStore, tokenizer: Any, context: int, window: int, documents: int, needles: bool, seed: int
) -> list[list[Probe]]:
    """`documents` rounds, each of one piece of text and, with `needles`, one needle prompt of the same length.

    Raises UserError, with the tokens needed and there, when the text holds fewer than two pieces.
    """
    pieces = cut_pieces(store, context, documents)
    found = [[text_probe(piece, window, context)] for piece in pieces]
    if needles:
        source = Needles(store, tokenizer, templates="train")
        for index, (probes, depth) in enumerate(zip(found, _depths(context, window, len(found)), strict=True)):
            probes.append(needle_probe(source, context, depth, np.random.default_rng([seed, context, index])))
    return found


def cut_pieces(store: TokenStore, context: int, documents: int, what: str = "a scan") -> list[np.ndarray]:
    """Pieces of `context` tokens, `documents` at most, spread over the text.

    Raises UserError, naming `what` they are for, when the text holds fewer than two.
    """
    sizes = np.diff(store.offsets) - (store.eos is not None)
    body = context - (store.bos is not None)
    held, needed = int((sizes // body).sum()), FEWEST * body
    if held < FEWEST:
        raise UserError(
            f"--data is too short for {what}: it has {int(sizes.sum()):,} tokens, in documents of at most "
            f"{int(sizes.max()):,}; --context {context} needs {needed:,}, as {FEWEST} pieces of {body:,}"
        )
    return cut(store, context, documents)


def _depths(context: int, window: int, count: int) -> np.ndarray:
    """Where facts stand, spread over the part of the prompt that the last window does not see."""
    return np.linspace(0.05, max(0.05, 1 - 1.5 * window / context), count)
