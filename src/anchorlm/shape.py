"""The sizes of a backbone, from its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a backbone that a plan depends on; all counts, no weights."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    max_positions: int
    family: str = "llama"
    bytes_per_element: int = 2

    @classmethod
    def from_config(cls, config: Any, bytes_per_element: int = 2) -> ModelShape:
        """The shape of a transformers config (an object or its dictionary)."""
        get = config.get if isinstance(config, Mapping) else lambda key, default=None: getattr(config, key, default)
        heads = get("num_attention_heads")
        return cls(
            layers=get("num_hidden_layers"),
            query_heads=heads,
            kv_heads=get("num_key_value_heads") or heads,
            head_dim=get("head_dim") or get("hidden_size") // heads,
            hidden=get("hidden_size"),
            vocab=get("vocab_size"),
            max_positions=get("max_position_embeddings"),
            family=get("model_type"),
            bytes_per_element=bytes_per_element,
        )
