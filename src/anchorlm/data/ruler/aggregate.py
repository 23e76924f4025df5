"""RULER's tracing and aggregation tasks (arXiv 2404.06654, sections 3.2, 3.3): variables, common and frequent words."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from itertools import islice

import numpy as np

from anchorlm.data.filler import NOISE
from anchorlm.data.ruler import words
from anchorlm.data.ruler.fit import Draft, Variant, Write

HOPS, EXAMPLE_FROM = 4, 1024  # a solved example leads the prompt from that length on
VT_PUBLISHED, CWE_PUBLISHED, FWE_PUBLISHED = 30, 120, 50  # tokens of an answer
CHAIN = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above. "
    "Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are:"
)
LIST = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list? "
    "Answer: The top 10 words that appear most often in the list are:"
)
CODED = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text? "
    "Answer: According to the coded text above, the three most frequently appeared words are:"
)
COMMON = 10  # words of a list that are asked for
FEWEST_OTHERS = 5
# common words each so often, the others each so often, and the same of the example before it: words, often, often
LONG, SHORT = (30, 3, (40, 10, 3)), (6, 1, (20, 3, 1))
BARE = ((6, 1, None), (3, 1, None), (2, 1, None))  # below EXAMPLE_FROM, the first that fits
LONG_FROM = 4096
DOTS, CODED_LETTERS, ALPHA = "....", 6, 2.0
FEWEST_CODED = 53  # from here on the fourth word of the Zeta distribution is strictly more frequent than the fifth


def tracking_variants(length: int) -> list[Variant]:
    """One chain of HOPS + 1 variables in filler; units are sentences of filler."""
    example = [Variant(_tracking(example=True))] if length >= EXAMPLE_FROM else []
    return [*example, Variant(_tracking(example=False))]


def _tracking(example: bool) -> Write:
    def write(units: int, rng: np.random.Generator) -> Draft:
        names = words.letters(HOPS + 1, 5, rng, string.ascii_uppercase)
        text, statements = chain(names, units, rng)
        if example:
            shown = words.letters(HOPS + 1, 3, rng, string.ascii_uppercase)
            text = f"{chain(shown, 5 * len(NOISE), rng)[0]} {' '.join(shown)}\n\n{text}"
        return Draft(text, tuple(names), tuple(statements), " ".join(names), {"example": example})

    return write


def chain(names: Sequence[str], units: int, rng: np.random.Generator) -> tuple[str, list[str]]:
    """The prompt of one chain, and its statements in order: the first names a value, each further one the variable
    before it."""
    value = int(rng.integers(10_000, 100_000))
    statements = [f"VAR {names[0]} = {value}"]
    statements += [f"VAR {new} = VAR {old}" for old, new in zip(names[:-1], names[1:], strict=True)]
    sentences = [NOISE[i % len(NOISE)] + ("\n" if i % len(NOISE) == len(NOISE) - 1 else " ") for i in range(units)]
    for at, statement in reversed(list(zip(np.sort(rng.integers(units + 1, size=len(statements))), statements))):
        sentences.insert(int(at), f"{statement}\n" if at and sentences[at - 1][-1] == "\n" else f"{statement} ")
    context = "".join(sentences).rstrip()
    return CHAIN.format(context=context, value=value, count=len(names)), statements


def common_variants(length: int) -> list[Variant]:
    """A numbered list of words; units are the words in it that are not asked for."""
    shapes = [LONG] if length >= LONG_FROM else []
    shapes += [SHORT] if length >= EXAMPLE_FROM else []
    return [Variant(_common(*shape), least=FEWEST_OTHERS) for shape in (*shapes, *BARE)]


def _common(often: int, seldom: int, example: tuple[int, int, int] | None) -> Write:
    def write(units: int, rng: np.random.Generator) -> Draft:
        text, answers = word_list(COMMON + units, often, seldom, rng)
        if example:
            shown, solved = word_list(*example, rng)
            text = f"{shown} {_numbered(solved)}\n{text}"
        facts = {"common": often, "others": seldom, "example": example is not None}
        return Draft(text, tuple(answers), tuple(f" {word}" for word in answers), _numbered(answers), facts)

    return write


def word_list(count: int, often: int, seldom: int, rng: np.random.Generator) -> tuple[str, list[str]]:
    """The prompt of a list of `count` different words, and the COMMON words that stand in it `often` times each.

    No other word has a common one as a part, so that an answer cannot be found where it is not meant.
    """
    drawn = iter(words.vocabulary(2 * count + 200, rng))
    common: list[str] = []
    while len(common) < COMMON:
        word = next(drawn)
        if not any(word in other or other in word for other in common):
            common.append(word)
    others = list(islice((word for word in drawn if not any(part in word for part in common)), count - COMMON))
    entries = common * often + others * seldom
    ordered = [entries[int(i)] for i in rng.permutation(len(entries))]
    return LIST.format(context=_numbered(ordered)), common


def _numbered(entries: Sequence[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(entries, start=1))


def frequent_variants(length: int) -> list[Variant]:
    """Coded words whose frequency falls with the square of their rank; units are words, before rounding down."""
    ranks = max(8, length // 50)

    def write(units: int, rng: np.random.Generator) -> Draft:
        coded = [DOTS, *words.letters(ranks - 1, CODED_LETTERS, rng, string.ascii_lowercase)]
        entries = [word for word, often in zip(coded, frequencies(ranks, units), strict=True) for _ in range(often)]
        answers = tuple(coded[1:4])
        context = " ".join(entries[int(i)] for i in rng.permutation(len(entries)))
        return Draft(CODED.format(context=context), answers, answers, ", ".join(answers), {"words": len(entries)})

    return [Variant(write, least=FEWEST_CODED)]


def frequencies(ranks: int, total: int) -> list[int]:
    """How often the word of each rank stands in a text of `total` words: total / (zeta(ALPHA) rank^ALPHA), rounded
    down; the first rank is the dots."""
    zeta = math.pi**2 / 6  # of ALPHA = 2
    return [int(total * rank**-ALPHA / zeta) for rank in range(1, ranks + 1)]
