"""Peak memory of one model at one length, in a process of its own: `python -m anchorlm.bench.worker SPEC.json`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anchorlm.bench.measure import ClockedRun
from anchorlm.bench.memory import peak_memory
from anchorlm.convert.attach import convert
from anchorlm.convert.bases import load_base
from anchorlm.convert.load import load
from anchorlm.core import UserError, seed_all


@dataclass(frozen=True)
class ModelSpec:
    """A model that another process can open: a folder or BASE name, and a plan to convert a BASE to."""

    source: str
    plan: dict[str, Any] | None = None
    dtype: str = "auto"
    device: str = "cpu"

    def open(self) -> tuple[Any, Any]:
        """(model in eval mode, tokenizer); new memory parameters are the same each time."""
        seed_all(0)
        if self.plan is None:
            return load(self.source, self.dtype, self.device)
        base = load_base(self.source, dtype=self.dtype, device=self.device)
        return convert(base, self.plan).eval(), base.tokenizer


def measure_peak(spec: ModelSpec, length: int, new_tokens: int = 8, block: int = 512, seed: int = 0) -> dict[str, Any]:
    """Peak memory growth, in bytes, of reading `length` tokens and writing `new_tokens` in a fresh process."""
    task = {**asdict(spec), "length": length, "new_tokens": new_tokens, "block": block, "seed": seed}
    task["threads"] = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path, found = Path(folder) / "spec.json", Path(folder) / "found.json"
        path.write_text(json.dumps(task), encoding="utf-8")
        source = str(Path(__file__).resolve().parents[2])
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
        command = [sys.executable, "-m", "anchorlm.bench.worker", str(path), str(found)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise UserError(f"memory of {spec.source} at {length} tokens could not be measured: {last}")
        return json.loads(found.read_text(encoding="utf-8"))


def _work(task: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(task["threads"])
    model, _ = ModelSpec(task["source"], task["plan"], task["dtype"], task["device"]).open()
    _run(model, 2, task, 1)  # allocations that every first call makes are no part of the text's cost
    with peak_memory(task["device"]) as peak:
        _run(model, task["length"], task, task["new_tokens"])
    return {"length": task["length"], **asdict(peak)}


def _run(model: Any, length: int, task: dict[str, Any], new_tokens: int) -> None:
    run = ClockedRun(model, length, task["block"], task["seed"])
    run.read()
    for _ in range(new_tokens):
        run.write()


if __name__ == "__main__":
    given, result = sys.argv[1:]
    Path(result).write_text(json.dumps(_work(json.loads(Path(given).read_text(encoding="utf-8")))), encoding="utf-8")
