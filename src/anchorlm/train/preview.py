"""What a run would train and how much memory it needs, without changing the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
from rich.table import Table
from torch import nn

from ..convert.adapters import has_lora, lora_parameters
from ..describe import rule_bytes
from ..plan import ModelShape
from ..settings import LoraSettings, Recipe
from .groups import make_groups, nothing_to_train
from .losses import CHUNK_ELEMENTS
from .stages import active_stages, changed_layers, trained_memory


@dataclass(frozen=True)
class Row:
    """A group of parameters in one stage; `lr` is None for what is frozen."""

    stage: str
    group: str
    count: int
    lr: float | None
    why: str


@dataclass(frozen=True)
class Preview:
    """Rows of the table of what trains, and the estimated bytes by part."""

    rows: list[Row]
    memory: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json and the run folder."""
        return {"rows": [asdict(row) for row in self.rows], "memory": self.memory, "total_bytes": self.total_bytes}

    def tables(self) -> Iterator[Table]:
        """The two tables that are printed."""
        trains = Table("stage", "parameters", "count", "learning rate", "why", title="what trains")
        for row in self.rows:
            rate = "frozen" if row.lr is None else f"{row.lr:g}"
            trains.add_row(row.stage, row.group, f"{row.count:,}", rate, row.why)
        yield trains
        needs = Table("memory", "estimated bytes", "MB", title="memory needed")
        for part, size in [*self.memory.items(), ("total", self.total_bytes)]:
            needs.add_row(part, f"{size:,}", f"{size / 1e6:,.1f}")
        yield needs


def preview(model: Any, recipe: Recipe) -> Preview:
    """Check that every stage has something to train and say what. Raises UserError for an empty stage."""
    rows = [row for name in active_stages(recipe) for row in _stage_rows(model, name, recipe)]
    trained = max(sum(r.count for r in rows if r.stage == name and r.lr) for name in active_stages(recipe))
    return Preview(rows, estimate(model, recipe, trained))


def _stage_rows(model: Any, name: str, recipe: Recipe) -> list[Row]:
    settings = getattr(recipe, name)
    groups = make_groups(trained_memory(model, settings), {}, settings)
    rows = [Row(name, g.name, g.count, g.lr, "slots of the plan") for g in groups]
    if name == "stage2":
        rows.append(_lora_row(model, recipe))
    elif not rows:
        raise nothing_to_train(name)
    if model.memory_parameters() and not groups:
        count = sum(p.numel() for p in model.memory_parameters().values())
        rows.append(Row(name, "slots, gates and maps", count, None, f"{name}.train_memory is false"))
    own = {id(p) for p in model.memory_parameters().values()} | {id(p) for p in lora_parameters(model).values()}
    frozen = sum(p.numel() for p in model.parameters() if id(p) not in own)
    return [*rows, Row(name, "backbone", frozen, None, "the teacher: its weights are never changed")]


def _lora_row(model: Any, recipe: Recipe) -> Row:
    lora, lr = recipe.stage2.lora, recipe.stage2.lr
    if has_lora(model):
        count = sum(p.numel() for p in lora_parameters(model).values())
        return Row("stage2", "LoRA", count, lr, "the model's own adapters; stage2.lora is not used")
    return Row("stage2", "LoRA", lora_count(model, lora), lr, f"rank {lora.rank} on {', '.join(lora.targets)}")


def lora_count(model: Any, lora: LoraSettings) -> int:
    """Parameters that LoRA would add: rank * (inputs + outputs) of each target."""
    wanted = tuple(f".{target}_proj" for target in lora.targets)
    layers = [m for n, m in model.backbone.named_modules() if isinstance(m, nn.Linear) and n.endswith(wanted)]
    return sum(lora.rank * (layer.in_features + layer.out_features) for layer in layers)


def estimate(model: Any, recipe: Recipe, trained: int) -> dict[str, int]:
    """Bytes by part at the peak of a step, beside the program itself and what its allocator holds in reserve."""
    shape, size = model.shape, next(model.backbone.parameters()).element_size()
    tokens = recipe.data.length * recipe.data.batch
    weights = sum({id(p): p.numel() * p.element_size() for p in model.parameters()}.values())
    stages = active_stages(recipe).values()
    transfer = bool(recipe.stage1.steps and recipe.stage1.w_mse)
    fed = transfer and recipe.stage1.mse_inputs == "teacher"
    states = shape.layers * fed + any(stage.w_kl for stage in stages)  # hidden states of the teacher that are held
    one_layer = tokens * _numbers_per_token(model, shape) * size
    between = tokens * (shape.hidden + 2 * shape.kv_heads * shape.head_dim) * size * shape.layers
    outputs = len(changed_layers(model.plan)) * tokens * shape.query_heads * shape.head_dim * size * transfer
    return {
        "weights": weights,
        "gradients": 4 * trained,
        "optimizer": 8 * trained,
        "activations": one_layer + between if recipe.checkpoint else one_layer * shape.layers,
        "states kept for the backward pass": _chunk_states(model, recipe),
        "outputs of teacher and student": outputs * (recipe.data.accumulate + 3)
        + states * tokens * shape.hidden * size * recipe.data.accumulate,
        "logits of one chunk": 4 * min(CHUNK_ELEMENTS, tokens * shape.vocab),
    }


def _numbers_per_token(model: Any, shape: ModelShape) -> int:
    """What one layer keeps of a token: norms, projections, the MLP, blocks of the window."""
    inner = getattr(model.backbone.config, "intermediate_size", 4 * shape.hidden)
    width = shape.query_heads * shape.head_dim
    projections = 3 * width + 4 * shape.kv_heads * shape.head_dim
    blocks = 4 * width if changed_layers(model.plan) else 0
    return 6 * shape.hidden + 4 * inner + projections + blocks


def _chunk_states(model: Any, recipe: Recipe) -> int:
    """Each slot keeps its state, its gradient and their intermediate values once per chunk."""
    total = 0
    for slot in model.plan.slots.values():
        state = sum(rule_bytes(slot, replace(model.shape, bytes_per_element=4)).values())
        total += 3 * state * -(-recipe.data.length // slot.chunk) * recipe.data.batch
    return total


def available_bytes() -> int:
    """Memory in bytes that this machine could still give without swapping."""
    return int(psutil.virtual_memory().available)
