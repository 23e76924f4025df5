"""LoRA through peft: adapters sit inside the wrapped attention, the model keeps its class and its parameter names.

peft's PeftModel wrapper is not used: it would hide the hybrid's own arguments. The stored format is peft's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from ..core import UserError, suggest

SHORT_NAMES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
ATTENTION = tuple(SHORT_NAMES.values())
PREFIX = "base_model.model."  # what peft puts before a module's name on disk


def add_lora(
    model: nn.Module,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = ATTENTION,
    *,
    dropout: float = 0.0,
) -> dict[str, tuple[int, int]]:
    """Put a LoRA of `rank` on every linear layer named in `targets` (q, k, v, o or a full name such as q_proj).

    Weights are fp32 whatever the backbone's dtype; `lora_B` starts at zero, so the output does not change.
    Returns the coverage, target -> (layers that got it, layers of the model).
    Raises UserError when a target matches nothing, or when the model has LoRA already.
    """
    if has_lora(model):
        raise UserError("the model already has LoRA adapters; merge them first")
    if rank < 1:
        raise UserError(f"LoRA rank is {rank}; it must be at least 1")
    names = [SHORT_NAMES.get(target, target) for target in targets]
    covered = coverage(model, names)
    alpha = int(alpha) if float(alpha).is_integer() else float(alpha)
    _inject(model, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=names, bias="none"))
    return covered


def coverage(model: Any, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """How many layers hold each target: name -> (matched layers, layers). UserError for a target found nowhere."""
    if not targets:
        raise UserError("LoRA targets are empty; name at least one of q, k, v, o")
    linear = linear_names(model.backbone)
    depth = int(model.backbone.config.num_hidden_layers)
    known = {name.rpartition(".")[2] for name in linear}
    for target in targets:
        if target not in known:
            raise UserError(
                f"LoRA target {target!r} matches no linear layer; {suggest(target, [*SHORT_NAMES, *known])}"
            )
    return {target: (sum(name.endswith("." + target) for name in linear), depth) for target in targets}


def coverage_line(covered: dict[str, tuple[int, int]]) -> str:
    """One printable line; a target that reaches only some layers stands out."""
    parts = [
        f"{name} {got} of {depth} layers" + (" (partly)" if got != depth else "")
        for name, (got, depth) in covered.items()
    ]
    return "LoRA on " + ", ".join(parts)


def linear_names(backbone: nn.Module) -> list[str]:
    """Full names of the backbone's own linear layers inside decoder layers; slots and tied heads are left out."""
    return [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and ".layers." in name and not _of_memory(name)
    ]


def _of_memory(name: str) -> bool:
    return ".writers." in name or ".readers." in name


def _inject(model: nn.Module, config: LoraConfig) -> None:
    """peft freezes everything that is not an adapter; the flags of all other parameters are put back."""
    flags = {parameter: parameter.requires_grad for parameter in model.parameters()}
    full = [name for name in linear_names(model.backbone) if name.rpartition(".")[2] in set(config.target_modules)]
    short, config.target_modules = config.target_modules, set(full)
    inject_adapter_in_model(config, model.backbone)
    config.target_modules = short
    for parameter in model.parameters():
        parameter.requires_grad_(flags.get(parameter, True))
    for parameter in lora_parameters(model).values():
        parameter.data = parameter.data.float()


def lora_layers(model: nn.Module) -> Iterator[tuple[str, BaseTunerLayer]]:
    """The wrapped linear layers with their full names."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer))


def has_lora(model: nn.Module) -> bool:
    return next(lora_layers(model), None) is not None


def lora_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Names and parameters of the adapters, named as in `model.named_parameters()`."""
    return {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}


def lora_config(model: Any) -> LoraConfig:
    return model.backbone.peft_config["default"]


@contextmanager
def lora_disabled(model: nn.Module) -> Iterator[nn.Module]:
    """The model without its adapters inside the block; requires_grad stays as it is.

    peft's own switch also freezes the weights, which would drop the gradient of a student step around the block.
    """
    layers = [layer for _, layer in lora_layers(model)]
    before = [layer._disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield model
    finally:
        for layer, flag in zip(layers, before, strict=True):
            layer._disable_adapters = flag


def merge_lora(model: Any) -> Any:
    """Fold the adapters into the linear layers, in place; afterwards the model holds no trace of peft.

    Its backbone is then no longer the base's, so `config.base` is cleared: the model can only be saved whole.
    """
    if has_lora(model):
        model.config.base = model.config.base_fingerprint = None
    for name, layer in list(lora_layers(model)):
        base = layer.get_base_layer()
        base.weight.data = _merged_weight(layer, base)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, base)
    if hasattr(model.backbone, "peft_config"):
        del model.backbone.peft_config
    return model


def _merged_weight(layer: BaseTunerLayer, base: nn.Linear) -> torch.Tensor:
    """Sum in fp32 and round once; refuse a result that is not finite."""
    precise = torch.promote_types(base.weight.dtype, torch.float32)
    merged = base.weight.data.to(precise) + layer.get_delta_weight("default").to(precise)
    if not torch.isfinite(merged).all():
        raise UserError("the LoRA weights are not finite; the adapter is damaged")
    return merged.to(base.weight.dtype)


def lora_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The adapter weights under peft's on-disk names, which an untouched base understands too."""
    return {_disk_name(name): value.detach().cpu().contiguous() for name, value in lora_parameters(model).items()}


def load_lora(model: nn.Module, config: dict[str, Any], state: dict[str, torch.Tensor], where: str) -> None:
    """Add adapters as `adapter_config.json` says and fill them; a missing or unexpected name is a UserError."""
    known = LoraConfig.__dataclass_fields__
    settings = LoraConfig(**{key: value for key, value in config.items() if key in known})
    settings.inference_mode = False
    settings.target_modules = set(settings.target_modules or ())
    coverage(model, sorted(settings.target_modules))
    _inject(model, settings)
    copy_tensors({_disk_name(name): value for name, value in lora_parameters(model).items()}, state, where)


def _disk_name(name: str) -> str:
    return PREFIX + name.removeprefix("backbone.").replace(".default.", ".")


def copy_tensors(own: dict[str, nn.Parameter], stored: dict[str, torch.Tensor], where: str) -> None:
    """Copy `stored` into the parameters `own`, strictly: names and shapes must be the same on both sides."""
    missing, unexpected = sorted(set(own) - set(stored)), sorted(set(stored) - set(own))
    if missing or unexpected:
        parts = [_named(missing, "lacks"), _named(unexpected, "has unexpected")]
        raise UserError(f"{where} does not fit the plan: it " + " and ".join(part for part in parts if part))
    for name, parameter in own.items():
        if parameter.shape != stored[name].shape:
            found, needed = tuple(stored[name].shape), tuple(parameter.shape)
            raise UserError(f"{where}: {name} has shape {found}, the plan needs {needed}")
        if not stored[name].is_floating_point():
            kind = str(stored[name].dtype).removeprefix("torch.")
            raise UserError(f"{where}: {name} holds {kind}; floating-point numbers are needed")
        if not torch.isfinite(stored[name]).all():
            raise UserError(f"{where}: {name} holds values that are not finite")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(stored[name])


def _named(names: list[str], verb: str) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{verb} {names[0]}{rest}"
