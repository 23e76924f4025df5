"""Tiny random models of every family, plans over them, and the comparisons that the tests share.

Weights are large enough (unit-sized logits, uneven attention) that a wrong key, position or state shows.
"""

from __future__ import annotations

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from anchorlm.conformance.checks import near as assert_near
from anchorlm.conformance.tiny import VOCAB, exact_norms, shake, tokens
from anchorlm.hf import AnchorForCausalLM, families
from anchorlm.plan import ModelShape, Plan, ReadMap, Slot
from anchorlm.presets import build
from anchorlm.state import ModelState

__all__ = ["VOCAB", "assert_near", "shake", "tokens"]  # the tests take them from here
SIZES = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, eos_token_id=None, bos_token_id=None, pad_token_id=None,
)  # fmt: skip
ROPE = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": ROPE}),
    "llama-tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "mistral-window": (MistralConfig, MistralForCausalLM, {"sliding_window": 11}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2-window": (
        Qwen2Config, Qwen2ForCausalLM, {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 10, "tie_word_embeddings": True}),
}  # fmt: skip

SLOT_KINDS: dict[str, dict] = {
    "default": {},
    "kv": {"heads": "kv"},
    "lag": {"lag": 1, "chunk": 3},
    "conv": {"conv": 3},
    "linear": {"rule": "linear", "options": {"step": 0.5}},
    "delta": {"rule": "delta"},
    "convex": {"mix": "convex"},
    "rope": {"rope": "absolute"},
    "chunk-rope-silu": {"rope": "chunk", "act": "silu"},
    "momentum": {"options": {"momentum": True}},
    "muon": {"options": {"momentum": True, "muon": True, "row_norm": "post"}},
    "dot-pre": {"options": {"loss": "dot", "row_norm": "pre", "ratio": 1.5}},
    "decay": {"options": {"decay": True}},
    "group": {"options": {"group": 2}},
    "group-of-all": {"options": {"group": 3, "momentum": True, "row_norm": "pre", "decay": True}},
    "low-rank": {"options": {"rank": 2, "row_norm": "post"}},
    "loud": {"silent": False},
    "planes": {"map": {"kind": "planes", "planes": 2}},
    "dense": {"map": {"kind": "dense"}},
    "expm-bare": {"map": {"kind": "expm"}, "norm": False},
    "nmm": {"rule": "nmm", "options": {"width": 5}},
    "nmm-group": {"rule": "nmm", "heads": "q", "norm": True, "options": {"width": 3, "depth": 2, "group": 2}},
    "nmm-plain": {
        "rule": "nmm",
        "mix": {"kind": "add", "gate": "query"},
        "map": "dense",
        "options": {"width": 4, "depth": 4, "momentum": False, "decay": False, "limit": 0.01},
    },
    "sum": {"mix": "sum"},
    "half": {"mix": {"kind": "convex", "share": 0.5}},
    "residual": {"mix": "residual"},
    "gla": {"rule": "gla"},
    "hgrn2": {"rule": "gla", "heads": "q", "options": {"variant": "hgrn2", "temperature": 2.0}},
    "scalar-gate": {"rule": "gla", "mix": "add", "norm": True, "options": {"variant": "scalar", "temperature": 4.0}},
    "gsa": {"rule": "gsa", "options": {"slots": 3}},
    "gla-by-chunk": {"rule": "gla", "lag": 1},
    "gsa-by-chunk": {"rule": "gsa", "lag": "chunk", "map": "dense", "options": {"slots": 5}},
    "lizard": {
        "rule": "hedgehog",
        "lag": "self",
        "heads": "kv",
        "rope": "none",
        "mix": "sum",
        "options": {"width": 5, "gate": "scalar", "gate_start": 0.8},
    },
    "exp-gated-chunk": {
        "rule": "hedgehog",
        "lag": 0,
        "mix": "convex",
        "rope": "chunk",
        "options": {"width": 3, "features": "exp", "gate": "scalar"},
    },
    "lolcats": {"rule": "hedgehog", "options": {"width": 4}},
    "lolcats-affine": {
        "rule": "hedgehog",
        "heads": "kv",
        "map": "dense",
        "mix": {"kind": "shared", "affine": True, "start": 0.3},
        "options": {"width": 4, "features": "exp"},
    },
    "evicted-sum": {"rule": "hedgehog", "mix": {"kind": "sum", "share": 0.7}, "norm": True, "options": {"width": 4}},
    "kept": {"rule": "kept", "options": {"tokens": 3, "width": 5}},
    "kept-q": {"rule": "kept", "heads": "q", "options": {"tokens": 5, "choose": "decay", "positions": "true"}},
}


def evicted(slot: dict) -> bool:
    """Whether a slot takes what leaves the window, which then has no sinks."""
    return slot.get("rule") == "hedgehog" and slot.get("lag", "evicted") == "evicted"


def config(family: str = "llama", layers: int = 4, **values):
    cls, _, own = FAMILIES[family]
    return cls(**(SIZES | {"num_hidden_layers": layers} | own | values))


def teacher(family: str = "llama", layers: int = 4, dtype=torch.float64, seed: int = 0, **values):
    """A random model of the family. In float64 its norms are exact too: transformers computes them in fp32."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = FAMILIES[family][1](config(family, layers, **values)).eval()
    shake(dict(model.named_parameters()), seed, matrix=0.25, vector=0.2)
    if dtype == torch.float64:
        exact_norms(model)
    for parameter in model.parameters():  # buffers stay: loading a checkpoint keeps RoPE's frequencies in fp32 too
        parameter.data = parameter.data.to(dtype)
    return model


def shake_memory(model: AnchorForCausalLM, seed: int = 1) -> AnchorForCausalLM:
    """Memory parameters as training might leave them: every gate open, every map turned."""
    shake(model.memory_parameters(), seed, matrix=0.15, vector=0.3)
    return model


def shape(family: str = "llama", layers: int = 4, **values) -> ModelShape:
    return ModelShape.from_config(config(family, layers, **values), bytes_per_element=8)


def hybrid(
    family: str = "llama", plan: str | Plan = "anchor", layers: int = 4, dtype=torch.float64, shaken: bool = True,
    seed: int = 0, teacher_values: dict | None = None, **values,
) -> AnchorForCausalLM:  # fmt: skip
    """A wrapped random model. values: fields of a preset; window 6 and sinks 2 unless given."""
    base = teacher(family, layers, dtype, seed, **(teacher_values or {}))
    if isinstance(plan, str):
        reach = {} if plan == "full" else {"window": 6, "sinks": 0 if evicted(values) else 2}
        plan = build(plan, ModelShape.from_config(base.config), **(reach | values))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AnchorForCausalLM.from_backbone(base, plan)
    return shake_memory(model) if shaken else model


def slot(kind: str = "default", **values) -> Slot:
    """A slot of one of SLOT_KINDS without the gap check, built as a plan file would."""
    entry = {"chunk": 4, "gap": True} | SLOT_KINDS[kind] | values
    plan = Plan.from_dict({"slots": {"s": {"write": 0} | entry}}, 64)
    return plan.slots["s"]


def plain_slot(**values) -> Slot:
    """A slot whose read is the bare answer of the rule: no map, no norm."""
    return slot(**({"map": ReadMap("none").kind, "norm": False} | values))


def normal(*size: int, seed: int = 5, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def meaning(state: ModelState, plan: Plan, row: int) -> dict[str, torch.Tensor]:
    """What one row of a state says, without the columns that mean nothing: comparable whatever the batch was."""
    position = int(state.position[row])
    said = {"position": state.position[row]}
    for i, layer in enumerate(state.attention):
        for heads, held in layer.items():
            name = f"{i}.{'+'.join(map(str, heads))}"
            count = min(held.keys.shape[2], position)
            columns = slice(held.keys.shape[2] - count, None)
            said |= {f"{name}.keys": held.keys[row, :, columns], f"{name}.values": held.values[row, :, columns]}
            if held.sink_keys is not None:
                said |= {f"{name}.sink_keys": held.sink_keys[row, :, :position]}
                said |= {f"{name}.sink_values": held.sink_values[row, :, :position]}
    for name, slot in state.slots.items():
        said |= _slot_meaning(name, slot, plan, row, position)
    return said


def _slot_meaning(name: str, held, plan: Plan, row: int, position: int) -> dict[str, torch.Tensor]:
    spec = plan.slots[name]
    if not spec.by_chunk:
        return {f"{name}.{k}": v[row] for k, v in (held.weights or {}).items()} if _stands(spec, plan, position) else {}
    written = max(0, position // spec.chunk - spec.behind)
    said = {f"{name}.buffer.{k}": v[row, : position - written * spec.chunk] for k, v in held.buffer.items()}
    if written:
        said |= {f"{name}.{k}": v[row] for k, v in held.weights.items()}
    return said if held.tail is None else said | {f"{name}.tail": held.tail[row]}


def _stands(spec: Slot, plan: Plan, position: int) -> bool:
    """Whether a slot that takes token by token holds anything after so many tokens."""
    reach = plan.layers[spec.write]
    least = {"terrace": 2 * (reach.window or 0)}.get(reach.kind, reach.window or 0)
    return position >= (1 if spec.lag == "self" else least)


def assert_same_state(
    a: ModelState, row_a: int, b: ModelState, row_b: int, plan: Plan, tolerance: float = 1e-10
) -> None:
    left, right = meaning(a, plan, row_a), meaning(b, plan, row_b)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert_near(value, right[name], tolerance, name)


def cut_reach(model: AnchorForCausalLM, layer: int):
    """The reach a layer really has: the plan's, cut to the teacher's own window."""
    return families.cut(model.plan.layers[layer], model.backbone.config, layer)
