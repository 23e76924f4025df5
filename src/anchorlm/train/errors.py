"""The error of a run that had to stop."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """Training stopped although the input was well formed, such as a loss that became NaN. Exit code 1."""
