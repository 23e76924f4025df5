"""One group of heads at a time: the query heads of one KV head keep to the window, the others see everything.

Which heads of a layer retrieve and which stream is the question of DuoAttention (arXiv 2410.10819).
"""

from __future__ import annotations

import torch
from torch import Tensor

from anchorlm.hf import AnchorForCausalLM
from anchorlm.hf.layers import Attended, run_layers
from anchorlm.plan import Plan, Reach


def functions(model: AnchorForCausalLM, layer: int, head: int, entering: Tensor, window: Reach) -> dict[int, Attended]:
    """For `attention_as`: what the layer's attention gives when KV head `head` alone keeps to the window.

    entering [B, T, D] is what enters the layer, which runs with its own reach otherwise.
    """
    attended: dict[int, Tensor] = {}
    narrow = Plan((window,) * len(model.plan.layers))
    run_layers(model, entering, narrow, first=layer, last=layer + 1, attended=attended)
    group = model.shape.query_heads // model.shape.kv_heads
    columns = torch.arange(attended[layer].shape[-1], device=entering.device) // (group * model.shape.head_dim)
    return {layer: lambda _, own: torch.where(columns == head, attended[layer], own)}
