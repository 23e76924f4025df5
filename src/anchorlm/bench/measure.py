"""Speed and state size at given lengths, models interleaved in one process so that noise falls on all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from anchorlm.core import UserError
from anchorlm.describe import state_bytes
from anchorlm.environment import environment, model_facts
from anchorlm.reading import beyond, cache_bytes, device_of, prefill

LENGTHS = (1024, 4096, 16384)
WARM_UP = 4  # tokens decoded before the clock counts
ENOUGH_SECONDS = 60.0  # of prefill at one length, after which no further round is begun

Progress = Callable[[str, int, int], None]


def measure(
    models: Mapping[str, Any],
    lengths: Iterable[int] = LENGTHS,
    new_tokens: int = 32,
    *,
    rounds: int = 3,
    block: int = 512,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Prefill tokens/s, decode ms/token and state bytes of every model at every length of random tokens.

    Each round reads the text with one model after the other, in turning order; decoding then alternates between
    them token by token. Medians are over rounds (prefill) and over all counted tokens (decode). A length beyond the
    positions of a base model is measured all the same, with a note: the time is right, the text would not be.
    """
    lengths = _checked(lengths, new_tokens, rounds)
    rows = []
    for done, length in enumerate(lengths):
        rows += _at_length(models, length, new_tokens, rounds, block, seed)
        if progress:
            progress(f"bench {length:,} tokens", done + 1, len(lengths))
    return {
        "kind": "bench",
        "options": {"new_tokens": new_tokens, "rounds": rounds, "block": block, "seed": seed, "warm_up": WARM_UP},
        "environment": environment(),
        "rows": rows,
    }


def _checked(lengths: Iterable[int], new_tokens: int, rounds: int) -> list[int]:
    lengths = list(lengths)
    for name, value in [("new tokens", new_tokens), ("rounds", rounds), *(("length", length) for length in lengths)]:
        if value < 1:
            raise UserError(f"bench {name} is {value}; at least 1 is needed")
    if not lengths:
        raise UserError("bench has no length; name at least one")
    return lengths


def _at_length(models: Mapping[str, Any], length: int, new_tokens: int, rounds: int, block: int, seed: int) -> list:
    reads: dict[str, list[float]] = {name: [] for name in models}
    writes: dict[str, list[float]] = {name: [] for name in models}
    states: dict[str, dict[str, int]] = {}
    for turn in range(rounds):
        names = list(models) if turn % 2 == 0 else list(models)[::-1]
        runs = {name: ClockedRun(models[name], length, block, seed + turn) for name in names}
        for name in names:
            reads[name].append(runs[name].read())
            states[name] = runs[name].bytes()
        for count in range(WARM_UP + new_tokens):
            for name in names:
                took = runs[name].write()
                writes[name] += [took] if count >= WARM_UP else []
        if sum(map(sum, reads.values())) > ENOUGH_SECONDS:
            break
    return [_row(name, model, length, reads[name], writes[name], states[name]) for name, model in models.items()]


class ClockedRun:
    """One model reading one text and writing on, a clocked step at a time."""

    def __init__(self, model: Any, length: int, block: int, seed: int):
        self.model, self.block, self.device = model, block, device_of(model)
        vocab = model.get_input_embeddings().weight.shape[0]
        ids = np.random.default_rng([seed, length]).integers(vocab, size=(1, length))
        self.ids = torch.from_numpy(ids).to(self.device)
        self.token = self.ids[:, :1]
        self.cache: Any = None

    def read(self) -> float:
        begun = self._now()
        logits, self.cache = prefill(self.model, self.ids, self.block)
        self.token = logits.argmax(-1, keepdim=True)
        return self._now() - begun

    @torch.inference_mode()
    def write(self) -> float:
        begun = self._now()
        out = self.model(input_ids=self.token, cache=self.cache, use_cache=True)
        self.cache, self.token = out.cache, out.logits[:, -1].argmax(-1, keepdim=True)
        return self._now() - begun

    def bytes(self) -> dict[str, int]:
        return cache_bytes(self.cache)

    def _now(self) -> float:
        """Accelerators answer before they are done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def largest_state(model: Any, length: int) -> int | None:
    """Bytes of the state at its fullest by the plan's closed form; a chunk buffer is empty at each chunk's end.

    None for a model without a plan, whose cache is just what was measured.
    """
    plan, shape = getattr(model, "plan", None), getattr(model, "shape", None)
    if plan is None or shape is None:
        return None
    width = model.get_input_embeddings().weight.element_size()
    parts = state_bytes(plan, replace(shape, bytes_per_element=width))
    return parts.pop("full attention per token") * length + sum(parts.values())


def _row(name: str, model: Any, length: int, reads: list, writes: list, state: dict[str, int]) -> dict[str, Any]:
    milliseconds = 1000 * np.asarray(writes)
    low, middle, high = np.quantile(milliseconds, [0.1, 0.5, 0.9])
    row = {
        "model": name,
        "length": length,
        "prefill_tokens_per_s": length / float(np.median(reads)),
        "prefill_spread": [length / max(reads), length / min(reads)],
        "rounds": len(reads),
        "decode_ms": float(middle),
        "decode_spread": [float(low), float(high)],
        "decode_tokens": len(writes),
        "state_bytes": sum(state.values()),
        "state_parts": state,
        "state_bytes_most": largest_state(model, length) or sum(state.values()),
        **model_facts(model),
    }
    note = beyond(model, length)
    return row | ({"note": note} if note else {})
