"""Peak memory of a piece of work: resident memory of this process, and the accelerator's where there is one."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

SAMPLE_SECONDS = 0.002


@dataclass
class Peak:
    """Bytes. `before`: resident when the work began; `growth`: the highest above that; `method`: how it was found."""

    before: int
    growth: int = 0
    method: str = ""
    accelerator: int | None = None


@contextmanager
def peak_memory(device: torch.device | str = "cpu") -> Iterator[Peak]:
    """Measure what runs inside the block. Freed memory is handed back first, so that it cannot hide growth."""
    _trim()
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
    peak = Peak(before=psutil.Process().memory_info().rss)
    kernel = _reset_high_water()
    sampler = None if kernel else _Sampler()
    yield peak
    highest = _high_water() if sampler is None else sampler.stop()
    peak.growth, peak.method = max(0, highest - peak.before), "kernel high water" if kernel else "sampled"
    if cuda:
        peak.accelerator = torch.cuda.max_memory_allocated(device) - held


def _trim() -> None:
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_high_water() -> bool:
    """Linux forgets the process's peak when 5 is written here; not allowed in every container."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return abs(_high_water() - psutil.Process().memory_info().rss) < 2**26
    except (OSError, StopIteration):
        return False


def _high_water() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


class _Sampler:
    """Highest resident memory seen by a thread that looks every few milliseconds."""

    def __init__(self) -> None:
        self.highest, self.running = 0, True
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        process = psutil.Process()
        while self.running:
            self.highest = max(self.highest, process.memory_info().rss)
            time.sleep(SAMPLE_SECONDS)

    def stop(self) -> int:
        self.running = False
        self.thread.join()
        return max(self.highest, psutil.Process().memory_info().rss)
