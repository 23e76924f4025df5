"""Fold the adapters in and write a whole folder that plain transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core import UserError, atomic_dir, check_apart
from ..shipped import located
from . import adapters, files
from .export import export_code, own_modules
from .load import load
from .save import run_record, write_companions, write_whole


def merge(
    path: str | Path,
    out: str | Path,
    *,
    dtype: str = "auto",
    base: str | None = None,
    any_base: bool = False,
    overwrite: bool = False,
) -> Path:
    """Merge the anchorlm folder `path` into the new folder `out` and return it.

    LoRA is folded into the linear layers, weights are written once each (tied weights stay tied), and the modelling
    code goes beside them: `AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)` needs no anchorlm.
    Raises UserError when `path` is not an anchorlm folder, or a training run that is not finished.
    """
    path = located(path)
    config = files.read_config(path)
    if config is None:
        files.check_finished(path)
        raise UserError(f"{path} is not an anchorlm folder; merge takes what convert or train wrote")
    check_apart(out, path, base or config.get("base"))
    with atomic_dir(out, overwrite=overwrite) as folder:
        model, tokenizer = load(path, dtype, base=base, any_base=any_base)
        record = _record(model, Path(path))
        adapters.merge_lora(model)
        model.config.base = model.config.base_fingerprint = None
        write_whole(model, folder)
        export_code(folder, own_modules(slot.rule for slot in model.plan.slots.values()))
        write_companions(model, folder, tokenizer, record, Path(out).resolve().name)
    return Path(out)


def _record(model: Any, source: Path) -> dict[str, Any]:
    """The source's run.json stays readable inside the new one."""
    try:
        earlier = json.loads((source / files.RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = {}
    earlier = earlier if isinstance(earlier, dict) else {}
    kept = {key: value for key, value in earlier.items() if key in ("data", "metrics", "recipe", "licence", "seed")}
    return run_record(model, {"merged_from": earlier.get("command", str(source)), **kept})
