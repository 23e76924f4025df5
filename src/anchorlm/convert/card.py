"""The model card, written from the run itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..describe import describe, describe_slots, state_bytes
from ..plan import ModelShape, Plan, Reach

TEMPLATE = """---
library_name: transformers
tags: [anchorlm, recurrent-memory, sliding-window]
{front}---

# {title}

{base} converted by [anchorlm](https://arxiv.org/abs/2611.04327): {summary}

## Plan
{plan}

{slots}

## State
Bytes for one sequence, keys and values in bfloat16 (twice as much for them in float32), all else in float32. They do
not depend on the length of the text; "full attention per token" is what each further token adds.

{state}

Parameters: {parameters}.
{sections}
## Use
```python
import anchorlm

model, tokenizer = anchorlm.load("{folder}")
```
A merged folder also loads without anchorlm, with `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`
and `AutoTokenizer.from_pretrained(folder, trust_remote_code=True)`.

## How it was made
```
{command}
```
Versions: {versions}.
"""


def write_card(model: Any, record: dict[str, Any], path: Path, title: str) -> None:
    path.write_text(card_text(model.plan, model.shape, record, title), encoding="utf-8")


def card_text(plan: Plan, shape: ModelShape, record: dict[str, Any], title: str) -> str:
    """The card as Markdown. Sections whose figures the run did not measure are left out, never made up."""
    base = record.get("base")
    return TEMPLATE.format(
        front=_front(record),
        title=title,
        folder=title,
        base=f"`{base}`" if base else "A pretrained model",
        summary=_summary(plan, shape),
        plan=table(describe(plan, shape)),
        slots=table(describe_slots(plan, shape)),
        state=table([{"part": part, "bytes": f"{size:,}"} for part, size in state_bytes(plan, shape).items()]),
        parameters=", ".join(f"{kind} {count:,}" for kind, count in record.get("parameters", {}).items()),
        sections=_sections(record),
        command=record.get("command", "unknown"),
        versions=", ".join(f"{name} {number}" for name, number in record.get("versions", {}).items()),
    )


def _front(record: dict[str, Any]) -> str:
    base, licence = record.get("base"), record.get("licence")
    hub = bool(base) and "/" in base and not Path(base).is_absolute()
    return (f"base_model: {base}\n" if hub else "") + (f"license: {licence}\n" if licence else "")


def _summary(plan: Plan, shape: ModelShape) -> str:
    limited = [groups for groups in (reach.groups(shape.kv_heads) for reach in plan.layers) if set(groups) != {Reach()}]
    full = sum(len(groups.get(Reach(), ())) for groups in limited)
    kept = f" ({full} of their KV heads keep full attention)" if full else ""
    slots = f"{len(plan.slots)} memory slot{'' if len(plan.slots) == 1 else 's'}"
    return f"{len(limited)} of {len(plan.layers)} layers with limited attention{kept}, {slots}."


def _sections(record: dict[str, Any]) -> str:
    """Data, settings, metrics and limits, each only when the run recorded it."""
    parts = []
    for key, heading in (("data", "Data"), ("recipe", "Recipe"), ("metrics", "Metrics"), ("limits", "Limits")):
        if record.get(key):
            parts.append(f"\n## {heading}\n{_plain(record[key])}\n")
    licence = record.get("licence")
    parts.append(f"\n## Licence\n{licence or 'The licence of the base model applies to its weights.'}\n")
    return "".join(parts)


def _plain(value: Any, depth: int = 0) -> str:
    """Text as it is, a list of rows as a table, anything nested as a list."""
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return table(value)
    pad = "  " * depth
    if isinstance(value, dict):
        return "\n".join(f"{pad}- {key}: {_inline(item, depth)}" for key, item in value.items())
    if isinstance(value, list):
        return "\n".join(f"{pad}- {item}" for item in value)
    return str(value)


def _inline(value: Any, depth: int) -> str:
    return "\n" + _plain(value, depth + 1) if isinstance(value, dict) and value else str(value)


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table whose columns are the keys of the first row."""
    if not rows:
        return "(none)"
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *[[str(row.get(name, "")) for name in names] for row in rows]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
