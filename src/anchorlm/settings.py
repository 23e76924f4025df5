"""Recipes: what a training run may set, read strictly from YAML and dotted overrides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from .core import LARGEST, MANY, UserError, read_yaml, suggest


def once(value: Any) -> Any:
    """A tuple of numbers or names with each of them once, in order; anything else as it is."""
    plain = isinstance(value, tuple) and all(isinstance(one, int | float | str) for one in value)
    return tuple(dict.fromkeys(value)) if plain else value


def _leaves(annotation: Any) -> set[Any]:
    """The types that an annotation takes, however it wraps them."""
    inner = get_args(annotation)
    return {annotation} if not inner else set().union(*map(_leaves, inner))


class Strict(BaseModel):
    """A group of settings: unknown keys are errors, values never change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        """True and false are no numbers, although Python counts with them."""
        kinds = _leaves(cls.model_fields[str(info.field_name)].annotation)
        if kinds & {int, float} and not kinds & {bool, Any}:
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, bool):
                    raise ValueError(f"{str(one).lower()} is no number")
        return value

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        """A whole number is one that a tensor can hold, unless its field has an upper bound of its own; what a list
        names is taken once."""
        bounds = cls.model_fields[str(info.field_name)].metadata
        if any(hasattr(bound, "lt") or hasattr(bound, "le") for bound in bounds):
            return value
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number > LARGEST:
                raise ValueError(f"{number} is too large; allowed is at most {LARGEST:,}")
        return once(value)


class MixSettings(Strict):
    """Share of the rows that are generated, by kind; the rest are rows of the texts."""

    recall: float = Field(0.0, ge=0, le=1)  # several facts spread over a text, each asked for at its end
    needle: float = Field(0.0, ge=0, le=1)  # one fact and its cue

    @model_validator(mode="after")
    def _at_most_all(self) -> MixSettings:
        if self.recall + self.needle > 1 + 1e-9:
            raise ValueError(f"the shares add up to {self.recall + self.needle:g}; allowed is at most 1")
        return self


class DataSettings(Strict):
    """Where a row of tokens begins and ends."""

    length: int = Field(1024, ge=2)  # tokens in a row
    batch: int = Field(1, ge=1, le=MANY)  # rows in one forward pass
    accumulate: int = Field(1, ge=1, le=MANY)  # forward passes in one optimizer step
    packing: Literal["concatenate", "documents"] = "concatenate"  # fill every row, or one document a row with padding
    on_document: Literal["reset", "carry"] = "reset"  # at a new document inside a row: start afresh, or read on
    mix: MixSettings = MixSettings()
    mix_answer_weight: float = Field(1.0, gt=0)  # in the loss, of a generated row's answers; other tokens count 1
    mix_end_weight: float = Field(1.0, gt=0)  # in the loss, of the token after each of these answers


class LoraSettings(Strict):
    """Low-rank adapters of the attention projections."""

    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    targets: tuple[Literal["q", "k", "v", "o"], ...] = Field(("q", "k", "v", "o"), min_length=1)


class StageSettings(Strict):
    """What both stages share: AdamW with a warm-up and a decay."""

    steps: int = Field(100, ge=0)  # optimizer steps; 0 leaves the stage out
    lr: float = Field(5e-4, gt=0)
    memory_lr_multiplier: float = Field(5.0, gt=0)  # times lr: slots, gates and read maps
    gate_lr_multiplier: float | None = Field(None, gt=0)  # times lr: readers' gates; None: as memory
    map_lr_multiplier: float | None = Field(None, gt=0)  # times lr: read maps; None: as memory
    warmup: int = Field(10, ge=0)  # steps of linear rise
    schedule: Literal["cosine", "constant"] = "cosine"
    floor: float = Field(0.0, ge=0, le=1)  # share of the peak at which a cosine ends
    beta2: float = Field(0.95, gt=0, lt=1)  # AdamW's memory of squared gradients
    clip: float = Field(1.0, ge=0)  # largest norm of the gradient of each group; 0 does not clip
    weight_decay: float = Field(0.0, ge=0)  # of LoRA alone: slots, gates and maps have no neutral zero
    w_ce: float = Field(1.0, ge=0)  # next-token cross-entropy
    w_kl: float = Field(0.0, ge=0)  # divergence from the teacher's next-token distribution
    temperature: float = Field(1.0, gt=0)  # of both distributions of w_kl
    cross_window_weight: float = Field(1.0, gt=0)  # in w_ce and w_kl, of targets last seen beyond the window
    window_dropout: float = Field(0.0, ge=0, le=1)  # probability that a row is run with narrower windows
    narrow_window: float = Field(0.25, ge=0, le=1)  # share of a window that such a row has, at least one token


class Stage1Settings(StageSettings):
    """Attention transfer: each changed layer imitates the teacher's attention output."""

    w_mse: float = Field(1.0, ge=0)
    w_keep: float = Field(1.0, ge=0)  # gates of kept tokens against the teacher's far attention
    w_maps: float = Field(0.0, ge=0)  # attention maps of shared normalisers against the teacher's
    mse_inputs: Literal["student", "teacher"] = "student"  # whose hidden states each layer sees while it is compared


class Stage2Settings(StageSettings):
    """Next-token training of the adapters together with everything stage 1 trained."""

    lora: LoraSettings = LoraSettings()
    train_memory: bool = True  # False: LoRA alone
    w_keep: float = Field(0.0, ge=0)  # as in stage 1


class Recipe(Strict):
    """One training run. The packaged YAML files list every field with its meaning."""

    name: str = "anchor"
    seed: int = Field(0, ge=0, lt=2**63)
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    data: DataSettings = DataSettings()
    stage1: Stage1Settings = Stage1Settings()
    stage2: Stage2Settings = Stage2Settings()
    eval_every: int = Field(25, ge=0)
    eval_batches: int = Field(4, ge=1, le=MANY)
    save_every: int = Field(25, ge=1)
    keep_last: int = Field(2, ge=1)
    checkpoint: bool = False
    shard: bool = False
    detach: int = Field(0, ge=0)
    calibrate: bool = True
    log: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()


Settings = TypeVar("Settings", bound=Strict)


def load_recipe(name: str | Path = "anchor", overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a packaged name or a YAML file, with `group.key=value` overrides applied in order."""
    data = _read_recipe(name)
    for override in overrides:
        apply_override(data, override, kind=Recipe)
    return checked(Recipe, data, "recipe")


def recipe_names() -> list[str]:
    """Names of the packaged recipes."""
    return sorted(item.name[:-5] for item in _packaged().iterdir() if item.name.endswith(".yaml"))


def checked(kind: type[Settings], data: Any, what: str) -> Settings:
    """`kind` made from plain data; a mistake becomes one UserError line with its dotted key."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = error.errors()  # a misspelt key is told before what is missing for want of it
        first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
        raise UserError(_explain(kind, first, what)) from None


def flatten(data: dict, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        nested = isinstance(value, dict) and value
        flat.update(flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return flat


def changed(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first key in which nested plain data differ, as `key was A, now B (and n more)`; None when they are equal."""
    was, now = flatten(json.loads(json.dumps(old))), flatten(json.loads(json.dumps(new)))
    keys = [key for key in [*was, *(key for key in now if key not in was)] if was.get(key) != now.get(key)]
    if not keys:
        return None
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return f"{keys[0]} was {was.get(keys[0])!r}, now {now.get(keys[0])!r}{more}"


def _packaged():
    return resources.files("anchorlm") / "recipes"


@cache
def _packaged_recipe(name: str) -> dict:
    return parse_yaml((_packaged() / f"{name}.yaml").read_text(encoding="utf-8"), f"recipe {name}")


def _read_recipe(name: str | Path) -> dict:
    path = Path(name)
    if str(name) in recipe_names():
        return deepcopy(_packaged_recipe(str(name)))
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        known = suggest(str(name), recipe_names())
        raise UserError(f"recipe {str(name)!r} is neither a file nor a packaged recipe; {known}")
    return parse_yaml(text, f"recipe {name}")


def parse_yaml(text: str, what: str) -> dict:
    """Keys and values of a YAML text; `what` names it in the UserError when it is none."""
    try:
        data = read_yaml(text)
    except (yaml.YAMLError, ValueError) as error:  # an impossible date is a ValueError
        raise UserError(f"{what} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UserError(f"{what} must hold keys and values, found {type(data).__name__}")
    return data


def apply_override(
    data: dict, override: str, example: str = "stage1.steps=400", kind: type[Strict] | None = None
) -> None:
    """Set one value of nested plain data from `group.key=value`, the value read as YAML. UserError for all else.

    kind: what the data are of; where it has a group of settings, a single value is a mistake.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"override {override!r} must look like {example}")
    try:
        value = read_yaml(text)
    except (yaml.YAMLError, ValueError):  # an impossible date is a ValueError
        raise UserError(f"override {override!r}: the value is not valid YAML") from None
    *groups, last = key.strip().split(".")
    if kind is not None and not isinstance(value, dict) and (inner := _group(kind, [*groups, last])):
        raise UserError(f"override {override!r}: {key.strip()} is a group of settings; set one of {', '.join(inner)}")
    for group in groups:
        data = data.setdefault(group, {})
        if not isinstance(data, dict):
            raise UserError(f"override {override!r}: {group} is a single value, not a group of settings")
    data[last] = value


def _explain(kind: type[Strict], error: Any, what: str) -> str:
    location = [str(part) for part in error["loc"]]
    dotted = ".".join(location)
    if error["type"] == "extra_forbidden":
        return f"{what} key {dotted!r} is unknown; {suggest(location[-1], _fields(kind, location[:-1]))}"
    if error["type"] == "missing":
        return f"{what} key {dotted!r} is missing"
    if error["type"] == "value_error":
        return f"{what} {dotted}: {error['ctx']['error']}"
    if error["type"] == "too_short":
        return f"{what} {dotted} is empty; give at least {error['ctx']['min_length']}"
    if error["type"] in ("tuple_type", "list_type"):
        return f"{what} {dotted} = {error['input']!r}: give a list, as [a, b]"
    return f"{what} {dotted} = {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _fields(kind: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Names of the fields where `path` ends; places in a list and keys of a mapping lead to no other model."""
    for part in path:
        if part in kind.model_fields:
            kind = next(_models(kind.model_fields[str(part)].annotation), kind)
    return list(kind.model_fields)


def _group(kind: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Names of the fields of the group of settings at `path`; none where something else is."""
    for part in path:
        field = kind.model_fields.get(part)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        kind = inner
    return list(kind.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that an annotation names, however it wraps them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
