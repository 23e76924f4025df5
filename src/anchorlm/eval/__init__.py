"""What a model keeps: perplexity by region of the text, and facts hidden in it, each with sample size and interval."""

from anchorlm.eval.options import EvalOptions
from anchorlm.eval.ppl import perplexity
from anchorlm.eval.runner import Prepared, check_names, check_out, check_suites, prepare, run_eval, run_prepared
from anchorlm.eval.source import Source, open_source
from anchorlm.eval.suites import SUITES
from anchorlm.eval.table import details, lines, pairs, table, title

__all__ = [
    "SUITES",
    "EvalOptions",
    "Prepared",
    "Source",
    "check_names",
    "check_out",
    "check_suites",
    "details",
    "lines",
    "open_source",
    "pairs",
    "perplexity",
    "prepare",
    "run_eval",
    "run_prepared",
    "table",
    "title",
]
