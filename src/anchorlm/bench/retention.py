"""How much of an early chunk a slot still answers many chunks later, before and after calibration.

For every token of a text the slot is asked with the key that was written; the answer is compared with the value that
was written. Both are centred over the text first, so that an answer which is always the same scores nothing.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..convert.calibrate import calibrate, layer_inputs
from ..core import UserError
from ..environment import environment
from ..nn.attention import HybridAttention
from ..ops.rows import Span
from ..state import SlotState

CHUNKS = 17


def retention(model: Any, input_ids: Tensor) -> dict[str, Any]:
    """Rows "as converted" and "calibrated" for every slot of a model that was not trained; changes the model.

    input_ids [1, T] with T at least 17 chunks of each slot. recall: mean cosine for the first chunk, after it was
    written alone and at the end, and for the newest chunk. change: median relative length of a chunk's update.
    """
    rows = [{"start": "as converted", **row} for row in _rows(model, input_ids)]
    steps = calibrate(model, input_ids)
    rows += [{"start": "calibrated", **row} for row in _rows(model, input_ids)]
    return {"kind": "retention", "rows": rows, "steps": steps, "environment": environment(model)}


@torch.no_grad()
def _rows(model: Any, input_ids: Tensor) -> list[dict[str, Any]]:
    inputs = layer_inputs(model, input_ids)
    rows = []
    for name, slot in model.plan.slots.items():
        length = CHUNKS * slot.chunk
        if input_ids.shape[1] < length:
            raise UserError(f"slots.{name} needs a text of {length} tokens; this one has {input_ids.shape[1]}")
        layer = model.backbone.model.layers[slot.write].self_attn
        rows.append({"slot": name, **_slot(model, layer, layer.writers[name], inputs[slot.write][:, :length])})
    return rows


def _slot(model: Any, layer: HybridAttention, writer: Any, x: Tensor) -> dict[str, float]:
    size = writer.slot.chunk
    rotary = partial(model.backbone.model.rotary_emb, x)
    _, k, v = layer.project(x)
    span = Span((0,), (x.shape[1],), x.shape[1])
    trace, _ = writer(x, k.transpose(1, 2), v.transpose(1, 2), SlotState(), span, rotary)
    repeats = writer.heads // k.shape[1]
    asked = writer.keys(k.repeat_interleave(repeats, 1), torch.arange(x.shape[1])[None], rotary)
    values = v.repeat_interleave(repeats, 1).float()

    def recall(state: dict[str, Tensor], first: int) -> float:
        answers = trace.rule.read(state, asked).answer
        pairs = [centred[:, :, first : first + size] for centred in (_centre(answers), _centre(values))]
        return float(F.cosine_similarity(*pairs, dim=-1).mean())

    changes = [
        max(float((after[n] - before[n]).norm() / before[n].norm().clamp(min=1e-12)) for n in before)
        for before, after in pairwise(trace.states)
    ]
    return {
        "first chunk at once": recall(trace.states[1], 0),
        "first chunk, 16 later": recall(trace.states[-1], 0),
        "newest chunk": recall(trace.states[-1], x.shape[1] - size),
        "change a chunk": median(changes),
        "common part of keys": float(asked.mean(2).norm(dim=-1).mean() / asked.norm(dim=-1).mean()),
    }


def _centre(x: Tensor) -> Tensor:
    return x - x.mean(2, keepdim=True)
