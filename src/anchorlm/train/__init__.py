"""Training in two stages: attention transfer, then adapters. One loop, exact resume."""

from .errors import TrainingError
from .preview import Preview
from .run import train

__all__ = ["Preview", "TrainingError", "train"]
