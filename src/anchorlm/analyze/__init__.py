"""Which layers need memory, and what a hybrid lost, where and why, as numbers."""

from .explain.run import run_analysis
from .similarity import cka_matrix, debiased_cka, mean_cosine

__all__ = ["cka_matrix", "debiased_cka", "mean_cosine", "run_analysis"]
