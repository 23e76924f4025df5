"""Read a long text and note, every so many tokens, what it costs: speed, state and the time of one more token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..reading import cache_bytes, prefill

DECODED = 5  # tokens written at each point to time one; the state is then put back


@dataclass(frozen=True)
class Point:
    """After `tokens` tokens: seconds of reading so far, speed of the last stretch, state, time for one more token."""

    tokens: int
    seconds: float
    tokens_per_second: float
    state_bytes: int
    decode_ms: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read(
    model: Any,
    ids: Tensor,
    *,
    block: int = 512,
    every: int = 0,
    progress: Callable[[int, int], None] | None = None,
    on_point: Callable[[Point], None] | None = None,
) -> tuple[Tensor, Any, float, list[Point]]:
    """Read ids [1, T]: logits [1, V] of the last token, the cache, seconds of reading, and a point `every` tokens.

    With `every` 0 there are no points. Timing one more token is not part of the seconds.
    """
    total, done, seconds, points = ids.shape[1], 0, 0.0, []
    cache: Any = None
    logits = ids.new_zeros(0)
    for stretch in ids.split(every or total, dim=1):
        started, begin = time.perf_counter(), done
        for part in stretch.split(block, dim=1):
            logits, cache = prefill(model, part, block, cache)
            done += part.shape[1]
            if progress is not None:
                progress(done, total)
        took = time.perf_counter() - started
        seconds += took
        if every:
            point = Point(done, round(seconds, 3), round((done - begin) / took, 1), *_cost(model, logits, cache))
            points.append(point)
            if on_point is not None:
                on_point(point)
    return logits, cache, seconds, points


@torch.inference_mode()
def _cost(model: Any, logits: Tensor, cache: Any) -> tuple[int, float | None]:
    """Bytes of the state, and the median ms of a token; a cache that cannot be put back is not written to."""
    size = sum(cache_bytes(cache).values())
    if not hasattr(cache, "snapshot"):
        return size, None
    kept, token, times = cache.snapshot(), logits.argmax(-1, keepdim=True), []
    for _ in range(DECODED):
        started = time.perf_counter()
        token = model(input_ids=token, cache=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
        times.append(time.perf_counter() - started)
    cache.restore(kept)
    return size, round(1000 * statistics.median(times), 2)
