"""What a MAD run is made of, as data: tasks, models, their sizes and their training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializeAsAny
from transformers import LlamaConfig

from ..core import MANY, UserError, suggest
from ..data.mad import TASKS, Task
from ..plan import ModelShape, Plan
from ..presets import PRESETS
from ..results.plans import plan_from
from ..results.table import table_text
from ..settings import StageSettings, Strict, apply_override, checked, parse_yaml


class Sizes(Strict):
    """A small Llama. spread: standard deviation of every matrix at the start; taps: tokens, its own and those before,
    that a causal convolution of the embeddings mixes at each place (1: none, as published)."""

    hidden: int = Field(64, ge=2)
    layers: int = Field(8, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(4, ge=1)
    intermediate: int = Field(128, ge=1)
    spread: float = Field(0.02, gt=0)
    taps: int = Field(1, ge=1)

    def config(self, vocab: int, length: int) -> LlamaConfig:
        """The configuration for rows of `length` tokens. Raises UserError for heads that do not fit the width."""
        if self.hidden % (2 * self.heads):
            raise UserError(
                f"model.hidden is {self.hidden} with {self.heads} heads; it must be a multiple of {2 * self.heads}"
            )
        if self.heads % self.kv_heads:
            raise UserError(f"model.kv_heads is {self.kv_heads}; it must divide the {self.heads} heads")
        return LlamaConfig(
            vocab_size=vocab, hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, intermediate_size=self.intermediate, initializer_range=self.spread,
            max_position_embeddings=length, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip


class Training(Strict):
    """AdamW on fresh rows, every weight trained.

    targets: "scored" asks for the answers alone, "published" for what the published task asks for. calibrate: fit the
    slots to a first row. enough: training accuracy over the last WATCHED steps at which training ends early.
    """

    steps: int = Field(300, ge=1)
    batch: int = Field(16, ge=1, le=MANY)
    lr: float = Field(2e-3, gt=0)
    memory_lr_multiplier: float = Field(1.0, gt=0)  # times lr: slots, gates and read maps
    weight_decay: float = Field(0.0, ge=0)  # of the backbone's matrices
    warmup: int = Field(20, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float = Field(1.0, ge=0)  # largest norm of the whole gradient; 0 does not clip
    targets: Literal["scored", "published"] = "scored"
    calibrate: bool = True
    enough: float = Field(1.0, ge=0, le=1)

    def stage(self) -> StageSettings:
        """The same as the training loop's own settings, for its schedule."""
        return StageSettings(steps=self.steps, lr=self.lr, warmup=self.warmup, schedule=self.schedule)


class Mad(Strict):
    """One run. models: name to preset, `{preset: NAME, field: value}` or an inline plan; slot: fields of the slots of
    every preset. test: rows a trained model is tested on. Window in tokens."""

    title: str
    seeds: int = Field(2, ge=1, le=MANY)
    test: int = Field(256, ge=1, le=MANY)
    model: Sizes = Sizes()
    window: int = Field(8, ge=1)
    sinks: int = Field(0, ge=0)
    slot: dict[str, Any] = {}
    training: Training = Training()
    models: dict[str, Any] = Field(min_length=1)
    tasks: dict[str, SerializeAsAny[Task]] = Field(min_length=1)

    def shape(self) -> ModelShape:
        """The models' common shape, in float32; positions for the longest task."""
        longest = max(task.length for task in self.tasks.values()) + 1
        return ModelShape.from_config(self.model.config(max(t.vocab for t in self.tasks.values()), longest), 4)

    def plans(self) -> dict[str, Plan]:
        """The checked plan of every model. Raises UserError naming the model whose plan is wrong."""
        return {name: self._plan(name, spec) for name, spec in self.models.items()}

    def _plan(self, name: str, spec: Any) -> Plan:
        shape, values = self.shape(), dict(spec) if isinstance(spec, Mapping) else spec
        values = {"preset": values} if isinstance(values, str) else values
        preset = values.get("preset") if isinstance(values, dict) else None
        if preset in PRESETS and PRESETS[preset](shape).slots:
            values = {**self.slot, **values}
        try:
            return plan_from(values, shape, self.window, self.sinks)
        except UserError as error:
            raise UserError(f"model {name!r}: {error}") from error

    def chosen(self, models: Sequence[str], tasks: Sequence[str]) -> Mad:
        """The same run of these models and tasks alone; of all where none is named."""
        return self.model_copy(
            update={"models": _pick(self.models, models, "model"), "tasks": _pick(self.tasks, tasks, "task")}
        )


def load_mad(
    name: str | Path = "mad",
    overrides: Sequence[str] = (),
    models: Sequence[str] = (),
    tasks: Sequence[str] = (),
    seeds: int | None = None,
) -> Mad:
    """The run of a packaged name or a YAML file, with `group.key=value` overrides, checked.

    Raises UserError for broken YAML, an unknown key, model or task, and a task too short for the window.
    """
    data = parse_yaml(table_text(name), f"table {name}")
    for override in overrides:
        apply_override(data, override, "training.steps=600", Mad)
    given = data.get("tasks")
    if not isinstance(given, Mapping):
        raise UserError(f"table {name}: tasks must name tasks, each with its sizes")
    data["tasks"] = {key: _task(key, values) for key, values in given.items()}
    data |= {} if seeds is None else {"seeds": seeds}
    mad = checked(Mad, data, "table").chosen(models, tasks)
    plans = mad.plans()
    for key, task in mad.tasks.items():
        task.check(key, _shortest(mad, plans))
    return mad


def _task(name: Any, values: Any) -> Task:
    if name not in TASKS:
        raise UserError(f"task {str(name)!r} is unknown; {suggest(str(name), TASKS)}")
    return checked(TASKS[name], values or {}, f"task {name}")


def _pick(all_: dict[str, Any], names: Sequence[str], what: str) -> dict[str, Any]:
    for name in names:
        if name not in all_:
            raise UserError(f"{what} {name!r} is unknown; {suggest(name, all_)}")
    return {name: all_[name] for name in names or all_}


def _shortest(mad: Mad, plans: Mapping[str, Plan]) -> int:
    """Tokens above which some layer needs more than its window; and two chunks where slots are calibrated."""
    chunks = [2 * slot.delay for plan in plans.values() for slot in plan.slots.values()]
    return max([mad.window + 1, *(chunks if mad.training.calibrate else [])])
