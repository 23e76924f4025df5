"""What a model keeps: perplexity by region of the text, and facts hidden in it, each with sample size and interval."""

from anchorlm.eval.ppl import perplexity
from anchorlm.eval.runner import SUITES, EvalOptions, check_suites, run_eval
from anchorlm.eval.table import lines, table

__all__ = ["SUITES", "EvalOptions", "check_suites", "lines", "perplexity", "run_eval", "table"]
