"""Memory rules: slow weights, what a token contributes, how a chunk is written, how a query reads."""

from ..ops.partials import Partial
from ..rules import RuleOptions
from .base import Memory, Weights
from .kept import KeptMemory
from .linear import DeltaMemory, LinearMemory
from .linear_attention import GlaMemory, GsaMemory, HedgehogMemory, StreamMemory
from .neural import NeuralMemory
from .own import load_rules
from .slot import SlotWriter
from .swiglu import SwigluMemory
from .trace import StreamTrace, Trace

__all__ = [
    "DeltaMemory", "GlaMemory", "GsaMemory", "HedgehogMemory", "KeptMemory", "LinearMemory", "Memory", "NeuralMemory",
    "Partial", "RuleOptions", "SlotWriter", "StreamMemory", "StreamTrace", "SwigluMemory", "Trace", "Weights",
    "load_rules",
]  # fmt: skip
