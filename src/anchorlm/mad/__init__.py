"""The MAD tasks: small models of every plan trained from scratch, side by side, over several seeds."""

from .run import run_mad
from .table import Mad, load_mad

__all__ = ["Mad", "load_mad", "run_mad"]
