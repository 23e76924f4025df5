"""Peak memory of one model at one length, in a process of its own: `python -m anchorlm.bench.worker SPEC.json`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from anchorlm.bench.measure import ClockedRun
from anchorlm.bench.memory import peak_memory
from anchorlm.convert.attach import convert
from anchorlm.convert.bases import load_base
from anchorlm.convert.load import load
from anchorlm.core import UserError, seed_all
from anchorlm.memory.own import load_listed

# glibc raises the size above which it returns a freed block at once, up to 32 MB; named, it stays at its first value.
TIGHT = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
WARM_UP_BLOCKS = 2


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


def measure_peak(
    spec: ModelSpec,
    length: int,
    new_tokens: int = 8,
    block: int = 512,
    seed: int = 0,
    *,
    repeats: int = 3,
    allocator: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Peak memory, in bytes, of reading `length` tokens and writing `new_tokens`, each time in a fresh process.

    growth: the median above the loaded and warmed model; spread: least and most; runs: each process's absolute
    figures. allocator: environment of the process; by default glibc gives a freed tensor back at once (`TIGHT`), so
    that the figure is what the text needs. With `{}` it is what such a process takes, holes kept for reuse included.
    """
    allocator = TIGHT if allocator is None else allocator
    task = {**asdict(spec), "length": length, "new_tokens": new_tokens, "block": block, "seed": seed}
    runs = [_in_a_process(task | {"threads": torch.get_num_threads()}, allocator) for _ in range(repeats)]
    growths = sorted(run["growth"] for run in runs)
    return {
        "length": length,
        "growth": int(median(growths)),
        "spread": [growths[0], growths[-1]],
        "runs": runs,
        "allocator": allocator,
    }


def _in_a_process(task: dict[str, Any], allocator: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path, found = Path(folder) / "spec.json", Path(folder) / "found.json"
        path.write_text(json.dumps(task), encoding="utf-8")
        source = str(Path(__file__).resolve().parents[2])
        path_of = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, **allocator, "PYTHONPATH": path_of}
        command = [sys.executable, "-m", "anchorlm.bench.worker", str(path), str(found)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            where = f"memory of {task['source']} at {task['length']} tokens"
            raise UserError(f"{where} could not be measured: {last}")
        return json.loads(found.read_text(encoding="utf-8"))


def _work(task: dict[str, Any]) -> dict[str, Any]:
    """The figures of one process. Two blocks and a token come first: what every first call allocates for good (worker
    threads' buffers, kernels' scratch space) is no part of the text's cost. `loaded` was resident before even those.
    """
    torch.set_num_threads(task["threads"])
    load_listed()
    model, _ = ModelSpec(task["source"], task["plan"], task["dtype"], task["device"]).open()
    loaded = psutil.Process().memory_info().rss
    _run(model, WARM_UP_BLOCKS * task["block"], task, 1)
    with peak_memory(task["device"]) as peak:
        _run(model, task["length"], task, task["new_tokens"])
    return {"loaded": loaded, "highest": peak.before + peak.growth, **asdict(peak)}


def _run(model: Any, length: int, task: dict[str, Any], new_tokens: int) -> None:
    run = ClockedRun(model, length, task["block"], task["seed"])
    run.read()
    for _ in range(new_tokens):
        run.write()


if __name__ == "__main__":
    given, result = sys.argv[1:]
    Path(result).write_text(json.dumps(_work(json.loads(Path(given).read_text(encoding="utf-8")))), encoding="utf-8")
