"""The 13 tasks of RULER at any length, generated here (arXiv 2404.06654); written from the paper.

Prompts, numbers of needles, hops and words, answer lengths and scores are the published ones. What differs: the words
and prose come from this package or from the user's text; every sample begins its prose elsewhere; and where a length is
too short for the published form (below 1,024 tokens) the solved example is left out, words are repeated less often
and the room for an answer is an eighth of the length.
"""

from anchorlm.data.ruler.fit import Fitter, Sample, TooShort
from anchorlm.data.ruler.tasks import GENERATED, TASKS, World, make, score

__all__ = ["GENERATED", "TASKS", "Fitter", "Sample", "TooShort", "World", "make", "score"]
