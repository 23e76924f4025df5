"""The transformers configuration of a hybrid: the backbone's own configuration and the explicit plan."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import CONFIG_MAPPING, PreTrainedConfig

from ..plan import ModelShape, Plan


@strict
class AnchorConfig(PreTrainedConfig):
    """A hybrid's configuration.

    backbone: the backbone's config as a dictionary. plan: the explicit plan, `Plan.to_dict()`.
    base, base_fingerprint: the checkpoint that an adapter folder needs, and a hash that it must match.
    """

    model_type = "anchorlm"

    backbone: dict | None = None
    plan: dict | None = None
    base: str | None = None
    base_fingerprint: str | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
            setattr(self, name, (self.backbone or {}).get(name))
        self.tie_word_embeddings = bool((self.backbone or {}).get("tie_word_embeddings", False))
        super().__post_init__(**kwargs)

    @classmethod
    def of(cls, backbone: PreTrainedConfig, plan: Plan, **kwargs: Any) -> AnchorConfig:
        """The configuration of `backbone` under `plan`. Where the backbone once lay on this machine is left out."""
        tokens = {n: getattr(backbone, n, None) for n in ("bos_token_id", "eos_token_id", "pad_token_id")}
        values = {name: value for name, value in backbone.to_dict().items() if name != "_name_or_path"}
        return cls(backbone=values, plan=plan.to_dict(), **tokens, **kwargs)

    def backbone_config(self) -> PreTrainedConfig:
        """The backbone's configuration as an object."""
        values = dict(self.backbone or {})
        return CONFIG_MAPPING[values.pop("model_type")](**values)

    def shape(self, bytes_per_element: int = 2) -> ModelShape:
        return ModelShape.from_config(self.backbone or {}, bytes_per_element)

    def read_plan(self) -> Plan:
        """The plan as an object, checked against the backbone's shape."""
        shape = self.shape()
        return Plan.from_dict(self.plan or {"attention": {"kind": "full"}}, shape.layers).check(shape)
