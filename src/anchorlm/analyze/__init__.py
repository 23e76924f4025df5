"""Which layers need memory, and what learned memories have in common, as numbers."""

from .similarity import debiased_cka, mean_cosine

__all__ = ["debiased_cka", "mean_cosine"]
