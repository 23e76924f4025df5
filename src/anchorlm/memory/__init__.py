"""Memory rules: slow weights, what a token contributes, how a chunk is written, how a query reads."""

from .base import Memory
from .kept import KeptMemory
from .linear import DeltaMemory, LinearMemory
from .linear_attention import GlaMemory, GsaMemory, HedgehogMemory
from .neural import NeuralMemory
from .slot import SlotWriter
from .swiglu import SwigluMemory
from .trace import StreamTrace, Trace

__all__ = [
    "DeltaMemory", "GlaMemory", "GsaMemory", "HedgehogMemory", "KeptMemory", "LinearMemory", "Memory", "NeuralMemory",
    "SlotWriter", "StreamTrace", "SwigluMemory", "Trace",
]  # fmt: skip
