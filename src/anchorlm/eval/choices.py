"""Log-likelihoods of continuations: a beginning that contexts share is read once, a context once for all its choices.

Tokens, cutting and sums are those of lm-evaluation-harness (Gao et al. 2021; `_encode_pair`, `_loglikelihood_tokens`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anchorlm.core import UserError
from anchorlm.data import leading_bos
from anchorlm.eval.scoring import continuation_scores
from anchorlm.reading import prefill, rewind

LEAST_SHARED = 32  # tokens; reading a shorter beginning apart costs a step of the model and saves less


@dataclass(frozen=True)
class Pair:
    """Tokens of a context (one at least) and of what is scored after it; `cut`: the context lost its beginning."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    cut: bool = False


class PairEncoder:
    """Texts to pairs of at most `limit` tokens read (None: any), the last of them kept, as lm-evaluation-harness does.

    Context and continuation are tokenised as one text, and spaces that end the context go with the continuation.
    """

    def __init__(self, tokenizer: Any, limit: int | None = None):
        self.tokenizer, self.limit = tokenizer, limit
        self.bos = leading_bos(tokenizer)

    @property
    def prefix(self) -> int:
        """What stands before a text without context."""
        return self.tokenizer.eos_token_id if self.bos is None else self.bos

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def __call__(self, context: str, continuation: str) -> Pair:
        kept = context.rstrip()
        first, whole = self.ids(kept), self.ids(context + continuation)
        if len(whole) <= len(first):
            raise UserError(f"the choice {continuation!r} is no token of its own after {kept[-40:]!r}")
        head = [self.prefix] if self.bos is not None or not first else []
        return self.fit([*head, *first], whole[len(first) :])

    def fit(self, context: Sequence[int], continuation: Sequence[int]) -> Pair:
        """The pair without its first tokens where the model could not read it: all but the very last are read."""
        room = self.limit and self.limit + 1
        if room is None or len(context) + len(continuation) <= room:
            return Pair(tuple(context), tuple(continuation))
        whole = [*context, *continuation][-room:]
        scored = min(len(continuation), room - 1)
        return Pair(tuple(whole[:-scored]), tuple(whole[-scored:]), True)


@torch.inference_mode()
def score_pairs(model: Any, pairs: Sequence[Pair], block: int = 512) -> list[tuple[float, bool]]:
    """For each pair the log-likelihood in nats of its continuation, and whether it is what greedy writing gives."""
    contexts: dict[tuple[int, ...], list[int]] = {}
    for place, pair in enumerate(pairs):
        contexts.setdefault(pair.context, []).append(place)
    shared = shared_beginning(list(contexts))
    begin = _after(model, shared, block)
    scores: dict[int, tuple[float, bool]] = {}
    for context, chosen in contexts.items():
        logits, cache = prefill(model, _row(context[len(shared) :]), block, begin())
        found = _scores(model, logits, cache, [pairs[place].continuation for place in chosen], block)
        scores |= dict(zip(chosen, found, strict=True))
    return [scores[place] for place in range(len(pairs))]


def shared_beginning(contexts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Tokens with which all contexts begin, each going on after them; empty where too few to be worth a step."""
    least, most = min(contexts), max(contexts)  # what the first and the last in order share, all share
    size = next((at for at, (a, b) in enumerate(zip(least, most)) if a != b), min(len(least), len(most)))
    size = min(size, min(map(len, contexts)) - 1)
    return least[:size] if len(contexts) > 1 and size >= LEAST_SHARED else ()


def _after(model: Any, shared: tuple[int, ...], block: int) -> Callable[[], Any]:
    """A function that gives the state after the shared beginning, anew each time."""
    return rewind(prefill(model, _row(shared), block)[1]) if shared else lambda: None


def _scores(
    model: Any, logits: torch.Tensor, cache: Any, continuations: list[tuple[int, ...]], block: int
) -> list[tuple[float, bool]]:
    """Scores of continuations of one context, side by side; a shorter one is padded where nothing follows it."""
    rows, longest = len(continuations), max(map(len, continuations))
    ids = torch.zeros(rows, longest, dtype=torch.long)
    for row, tokens in zip(ids, continuations, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    if rows > 1 and longest > 1:
        cache.batch_repeat_interleave(rows)
    nll, right = continuation_scores(model, logits.expand(rows, -1), cache, ids, block)
    sizes = map(len, continuations)
    return [(-float(n[:size].double().sum()), bool(r[:size].all())) for n, r, size in zip(nll, right, sizes)]


def _row(tokens: Sequence[int]) -> torch.Tensor:
    return torch.tensor([tokens], dtype=torch.long)
