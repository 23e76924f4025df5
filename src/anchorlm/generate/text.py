"""Read a text of any length in blocks, then write: the loop behind `anchorlm generate`."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core import LARGEST, MANY, UserError, not_whole
from ..reading import cache_bytes, device_of
from .sampling import Sampler
from .stops import TextStream
from .trace import Point, read

Progress = Callable[[int, int], None]  # tokens read, tokens in all


@dataclass(frozen=True)
class Options:
    """temperature 0 is greedy. `raw` leaves the chat template out. `force` reads past a full-attention limit.

    `limit` cuts the text (not the prompt) to that many tokens; `every` notes the cost each time that many were read.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    raw: bool = False
    force: bool = False
    block: int = 512
    limit: int | None = None
    every: int = 0

    def check(self) -> Options:
        _whole("max-new-tokens", self.max_new_tokens, 0, MANY)
        _whole("block", self.block, 1)
        _whole("limit", 1 if self.limit is None else self.limit, 1)
        _whole("figures-every", self.every, 0)
        if self.temperature < 0:
            raise UserError(f"--temperature is {self.temperature}; it must be at least 0")
        if not math.isfinite(self.temperature):
            raise UserError(f"--temperature is {self.temperature}; it must be a finite number")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p is {self.top_p}; it must be above 0 and at most 1")
        if any(not stop for stop in self.stop):
            raise UserError("a stop string is empty")
        return self


def _whole(name: str, value: int, least: int, most: int = LARGEST) -> None:
    if needed := not_whole(value, least, most):
        raise UserError(f"--{name} is {value}; it must be {needed}")


@dataclass(frozen=True)
class Generated:
    """The text written, and what it cost. Times in seconds, sizes in bytes."""

    text: str
    finish: str  # "end" (end-of-text token), "stop" (a stop string), "length"
    tokens_read: int
    read_seconds: float
    tokens_written: int
    ms_per_token: float | None
    state_bytes: dict[str, int]
    points: list[Point] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def read_tokens_per_second(self) -> float:
        return self.tokens_read / max(self.read_seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"read_tokens_per_second": round(self.read_tokens_per_second, 1)}


def generate_text(
    model: Any,
    tokenizer: Any,
    prompt: str,
    text: str = "",
    options: Options | None = None,
    *,
    on_text: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> Generated:
    """Read `text` and `prompt`, then write up to `max_new_tokens`.

    `on_text` receives each new piece of text as it becomes certain; `progress(tokens read, tokens in all)` is called
    after each block, `on_point` each time `options.every` tokens were read. Raises UserError for an empty input, and
    for a text beyond the positions of a layer with full attention, unless `force`.
    """
    options = (options or Options()).check()
    ids = encode(tokenizer, prompt, shorten(tokenizer, text, options.limit), raw=options.raw)
    warnings = check_length(model, len(ids) + options.max_new_tokens, force=options.force)
    with torch.inference_mode():
        batch = torch.tensor([ids], device=device_of(model))
        reading = {"block": options.block, "every": options.every, "progress": progress, "on_point": on_point}
        logits, cache, seconds, points = read(model, batch, **reading)
        costs = {"read_seconds": round(seconds, 4), "points": points, "warnings": warnings}
        return write_on(model, tokenizer, logits, cache, options, on_text, tokens_read=len(ids), **costs)


def write_on(
    model: Any,
    tokenizer: Any,
    logits: Tensor,
    cache: Any,
    options: Options,
    on_text: Callable[[str], None] | None = None,
    **costs: Any,
) -> Generated:
    """Write up to `max_new_tokens` after logits [1, V] and the cache; `costs`: what reading has cost."""
    held = cache_bytes(cache)
    stream = TextStream(tokenizer, options.stop, on_text)
    times = list(_write(model, logits, cache, stream, options))
    return Generated(
        text=stream.text,
        finish=stream.finish or "length",
        tokens_written=stream.count,
        ms_per_token=round(1000 * statistics.median(times), 3) if times else None,
        state_bytes=held,
        options=asdict(options),
        **costs,
    )


def _write(model: Any, logits: Tensor, cache: Any, stream: TextStream, options: Options) -> Iterator[float]:
    """Sample until an end token, a stop string or the limit; yields the seconds of each step of the model."""
    sampler = Sampler(options.temperature, options.top_p, options.seed)
    ends = end_tokens(model, stream.tokenizer)
    for step in range(options.max_new_tokens):
        token = sampler(logits)
        if int(token) in ends:
            stream.close("end")
            return
        if stream.add(int(token)) or step + 1 == options.max_new_tokens:
            break
        started = time.perf_counter()
        logits = model(token[:, None], cache=cache, use_cache=True).logits[:, -1]
        yield time.perf_counter() - started
    stream.close()


def encode(tokenizer: Any, prompt: str, text: str = "", *, raw: bool = False) -> list[int]:
    """Token ids of the text followed by the prompt, inside the chat template when there is one and not `raw`."""
    content = join(text, prompt)
    if not content.strip():
        raise UserError("the input is empty; give --prompt or a file with text")
    framed, special = frame(tokenizer, content, raw=raw)
    return token_ids(tokenizer, framed, special=special)


def join(text: str, prompt: str) -> str:
    return f"{text}\n\n{prompt}" if text and prompt else text or prompt


def frame(tokenizer: Any, content: str, *, raw: bool) -> tuple[str, bool]:
    """The content as the model is to see it, and whether the tokenizer still has to add its special tokens."""
    if raw or not getattr(tokenizer, "chat_template", None):
        return content, True
    chat = [{"role": "user", "content": content}]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), False


def shorten(tokenizer: Any, text: str, limit: int | None) -> str:
    """The text's first `limit` tokens, as text."""
    if limit is None or not text:
        return text
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return text if len(found) <= limit else text[: found[limit - 1][1]]


def token_ids(tokenizer: Any, content: str, *, special: bool) -> list[int]:
    """A book is longer than the tokenizer's own limit, which does not apply to the state: no warning is wanted."""
    ids = tokenizer(content, add_special_tokens=special, verbose=False)["input_ids"]
    if not ids:
        raise UserError("the input has no tokens; give --prompt or a file with text")
    return ids


def check_length(model: Any, tokens: int, *, force: bool = False) -> list[str]:
    """Full attention has no meaning beyond the positions it was trained for: an error, or a warning with `force`."""
    limit = model.shape.max_positions
    full = [index for index, reach in enumerate(model.plan.layers) if reach.unlimited]
    if not full or not limit or tokens <= limit:
        return []
    layers = f"all {len(full)} layers" if len(full) == len(model.plan.layers) else f"layers {', '.join(map(str, full))}"
    line = f"{tokens} tokens, but full attention in {layers} was trained for {limit} positions"
    if not force:
        raise UserError(f"{line}; shorten the text, use a plan without full attention, or pass --force")
    return [f"{line}; output beyond them is unreliable"]


def end_tokens(model: Any, tokenizer: Any) -> set[int]:
    stored = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    values = stored if isinstance(stored, (list, tuple)) else [stored]
    return {int(value) for value in [*values, getattr(tokenizer, "eos_token_id", None)] if value is not None}
