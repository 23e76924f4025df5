"""Read a text once, then ask any number of questions about it: each starts from the same state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core import UserError
from ..reading import device_of, prefill, rewind
from .text import Generated, Options, Progress, check_length, frame, join, shorten, token_ids, write_on
from .trace import Point, read


@dataclass(frozen=True)
class ReadText:
    """A text that a model has read. `seconds` of reading, `points` as in `trace.read`; `restore` gives the cache."""

    model: Any
    tokenizer: Any
    text: str
    options: Options
    tokens: int
    logits: Tensor
    restore: Callable[[], Any]
    seconds: float
    points: list[Point]

    @torch.inference_mode()
    def ask(
        self, question: str, options: Options | None = None, on_text: Callable[[str], None] | None = None
    ) -> Generated:
        """What the model writes after text and question; the text is not read again. No question: it writes on.

        `options` says how to write; how the text was framed (`raw`) and cut (`limit`) stays. The same tokens as
        `generate_text` gives for both together, where the tokenizer is a byte-level one.
        """
        kept = self.options
        options = replace(options or kept, raw=kept.raw, limit=kept.limit).check()
        ids = self._question_ids(question)
        warnings = check_length(self.model, self.tokens + len(ids) + options.max_new_tokens, force=options.force)
        logits, cache, begun = self.logits, self.restore(), time.perf_counter()
        if ids:
            batch = torch.tensor([ids], device=device_of(self.model))
            logits, cache = prefill(self.model, batch, options.block, cache)
        costs = {"read_seconds": round(time.perf_counter() - begun, 4), "points": self.points, "warnings": warnings}
        return write_on(
            self.model, self.tokenizer, logits, cache, options, on_text, tokens_read=self.tokens + len(ids), **costs
        )

    def _question_ids(self, question: str) -> list[int]:
        _, tail, _ = _halves(self.tokenizer, self.text, question, self.options.raw)
        return token_ids(self.tokenizer, tail, special=False) if tail else []


def read_text(
    model: Any,
    tokenizer: Any,
    text: str,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> ReadText:
    """Read `text`, cut to `options.limit` tokens, to its end. Raises UserError as `generate_text` does."""
    options = (options or Options()).check()
    text = shorten(tokenizer, text, options.limit)
    if not text.strip():
        raise UserError("the text is empty")
    head, _, special = _halves(tokenizer, text, "", options.raw)
    ids = token_ids(tokenizer, head, special=special)
    check_length(model, len(ids), force=options.force)
    with torch.inference_mode():
        batch = torch.tensor([ids], device=device_of(model))
        reading = {"block": options.block, "every": options.every, "progress": progress, "on_point": on_point}
        logits, cache, seconds, points = read(model, batch, **reading)
    return ReadText(model, tokenizer, text, options, len(ids), logits, rewind(cache), seconds, points)


def _halves(tokenizer: Any, text: str, question: str, raw: bool) -> tuple[str, str, bool]:
    """The framed input cut after the text's last letter, and whether the first half still lacks its special tokens.

    White space after it goes with the question: byte-level tokenizers never join it to the letter before.
    """
    framed, special = frame(tokenizer, join(text, question), raw=raw)
    kept = text.strip()
    if kept not in framed:
        raise UserError("the chat template changes the text, so it cannot be read once for several questions; use raw")
    end = framed.index(kept) + len(kept)
    return framed[:end], framed[end:], special
