"""Tiny random models whose weights are large enough that a wrong key, position or state shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from ..hf import AnchorForCausalLM
from ..hf.model import OWN_MODULES
from ..plan import ModelShape, Plan

VOCAB = 61
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "qwen3": {"head_dim": 10}}
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip


def tiny(plan: Mapping[str, Any], family: str = "llama", seed: int = 0) -> AnchorForCausalLM:
    """Two layers in float64 under a plan, every weight of backbone and memory moved away from its start.

    Raises UserError for a plan that does not fit.
    """
    config = AutoConfig.for_model(family, **(SIZES | FAMILIES[family]))
    chosen = Plan.from_dict(plan, 2).check(ModelShape.from_config(config))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = AutoModelForCausalLM.from_config(config).eval()
        shake(dict(backbone.named_parameters()), seed, matrix=0.25, vector=0.2)
        exact_norms(backbone)
        model = AnchorForCausalLM.from_backbone(backbone.double(), chosen)
    shake(model.memory_parameters(), seed + 1, matrix=0.15, vector=0.3)
    return model


def shake(parameters: Mapping[str, nn.Parameter], seed: int, matrix: float, vector: float) -> None:
    """Add noise to every parameter in place: biases that start at zero and norms that start at one count too."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += ((matrix if parameter.dim() > 1 else vector) * noise).to(parameter.dtype)


def exact_norms(model: nn.Module) -> None:
    """Norms in the model's own precision: transformers computes them in fp32."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm") and not isinstance(child, nn.RMSNorm):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)


def restart(model: AnchorForCausalLM) -> None:
    """Every memory parameter back at its documented start."""
    for module in model.modules():
        if isinstance(module, OWN_MODULES):
            module.reset_parameters()


def tokens(rows: int, length: int, seed: int = 3) -> Tensor:
    """Random ids [rows, length] below VOCAB."""
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))
