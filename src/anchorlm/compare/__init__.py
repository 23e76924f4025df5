"""Methods side by side on one base, text and budget: each with its own recipe, a common one, and in measured layers."""

from .budget import parse_tokens
from .contest import DEFAULT, Contest, check_methods, contest_table
from .places import known_layers, named_layers
from .texts import apart

__all__ = [
    "DEFAULT",
    "Contest",
    "apart",
    "check_methods",
    "contest_table",
    "known_layers",
    "named_layers",
    "parse_tokens",
]
