"""Memory rules: slow weights, what a token contributes, how a chunk is written, how a query reads."""

from .base import Memory
from .kept import KeptMemory
from .linear import DeltaMemory, LinearMemory
from .slot import SlotWriter, Trace
from .swiglu import SwigluMemory

__all__ = ["DeltaMemory", "KeptMemory", "LinearMemory", "Memory", "SlotWriter", "SwigluMemory", "Trace"]
