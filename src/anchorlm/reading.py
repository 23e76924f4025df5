"""Reading a text with any causal model: block by block, with what is known about its cache and its positions.

A model is anything called as model(input_ids=, cache=, use_cache=, logits_to_keep=) that returns .logits and .cache,
which holds for transformers models and for AnchorForCausalLM. Rows of a batch have one length; a shorter text is
padded on the right, where a causal model cannot let it change anything earlier.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


@torch.inference_mode()
def prefill(model: Any, ids: torch.Tensor, block: int = 512, cache: Any = None) -> tuple[torch.Tensor, Any]:
    """Read ids [B, T]; the logits [B, V] after the last token, and the cache."""
    ids, logits = ids.to(device_of(model)), None
    for part in ids.split(block, dim=1):
        out = model(input_ids=part, cache=cache, use_cache=True, logits_to_keep=1)
        cache, logits = out.cache, out.logits[:, -1]
    assert logits is not None, "no token to read"
    return logits, cache


def device_of(model: Any) -> torch.device:
    return next(model.parameters()).device


def position_limit(model: Any) -> int | None:
    """Tokens after which the model leaves the positions it was trained on; None when no layer sees that far back."""
    plan = getattr(model, "plan", None)
    if plan is not None and not any(reach.unlimited for reach in plan.layers):
        return None
    config = model.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None and isinstance(getattr(config, "backbone", None), dict):
        limit = config.backbone.get("max_position_embeddings")
    return limit


def beyond(model: Any, tokens: int) -> str | None:
    """Why a text of this many tokens is not measured with this model, or None when it can be."""
    limit = position_limit(model)
    return f"beyond the {limit:,} positions of the base model" if limit is not None and tokens > limit else None


def cache_bytes(cache: Any) -> dict[str, int]:
    """Bytes the cache holds now, by part: its own account, or the tensors of a transformers cache."""
    if hasattr(cache, "nbytes"):
        return dict(cache.nbytes())
    tensors = {id(t): t for layer in cache.layers for t in vars(layer).values() if isinstance(t, torch.Tensor)}
    return {"full attention": sum(tensor.nbytes for tensor in tensors.values())}


def rewind(cache: Any) -> Callable[[], Any]:
    """A function that gives the cache as it is now, as often as it is called, after the model has read on with it."""
    if hasattr(cache, "snapshot"):
        kept = cache.snapshot()

        def restore() -> Any:
            cache.restore(kept)
            return cache

        return restore
    kept = copy.deepcopy(cache)
    return lambda: copy.deepcopy(kept)
