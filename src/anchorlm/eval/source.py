"""What an evaluation must know of a model before its weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from anchorlm.convert.load import load_tokenizer
from anchorlm.convert.summary import source_config
from anchorlm.plan import Plan
from anchorlm.reading import position_limit


@dataclass(frozen=True)
class Source:
    """The tokenizer, the most tokens the model can read (None: any number), the window most layers have, and the name
    of the base of an anchorlm folder."""

    tokenizer: Any
    positions: int | None
    window: int | None
    base: str | None = None


def open_source(path: str, base: str | None = None) -> Source:
    """Read the tokenizer, config and plan of an anchorlm folder or a BASE. Raises UserError where there are none."""
    config, stored = source_config(path)
    plan = Plan.from_dict(stored.get("plan") or {}, config.num_hidden_layers) if stored else None
    positions = position_limit(SimpleNamespace(config=config, plan=plan))
    return Source(load_tokenizer(path, base), positions, plan.common_reach if plan else None, stored.get("base"))
