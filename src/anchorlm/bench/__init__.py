"""What a model costs: time per token, bytes of state and peak memory, at given lengths, side by side."""

from anchorlm.bench.measure import LENGTHS, measure
from anchorlm.bench.memory import Peak, peak_memory

__all__ = ["LENGTHS", "Peak", "measure", "peak_memory"]
