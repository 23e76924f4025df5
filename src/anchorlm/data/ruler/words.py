"""Names, words and running text that the tasks are made of, all from this package: nothing is downloaded."""

from __future__ import annotations

import re
import uuid
from functools import cache
from typing import Any

import numpy as np

from anchorlm.data import needles, wordings
from anchorlm.data.sources import packaged_text
from anchorlm.data.tokens import TokenStore


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _list(
    "able agile amber ancient arctic bitter blank bold brave brief bright brisk broad calm careful cheap civil "
    "clean clever cloudy common cosmic crisp curious curved daily damp dapper dark deep distant dizzy dry dull "
    "eager early easy empty entire exact faint fair famous fancy fast fierce final firm flat fluffy formal frail "
    "fresh frosty gentle giant glad golden grand great greedy handy happy harsh heavy hidden hollow honest humble "
    "icy idle inner jolly keen kind large late lazy lively local lone loud loyal lucky magic major mellow merry "
    "mighty mild minor misty modern narrow neat nimble noble noisy odd old open outer pale patient plain polite "
    "proud quick quiet rapid rare rough round royal rusty salty sharp shiny short silent simple slim slow small "
    "smooth soft solid spare steep strict strong sudden sunny sweet swift tall tame tidy tiny tough upper vague "
    "vast vivid warm wary weak weary wild wise witty young zesty"
)
NOUNS = tuple(sorted({*needles.WORDS, *wordings.WORDS}))
LEAST, MOST = 4, 8  # letters of a listed word


def names(count: int, rng: np.random.Generator) -> list[str]:
    """`count` different names such as calm-river; with a second adjective where there are too few of those."""
    adjectives, nouns = len(ADJECTIVES), len(NOUNS)
    parts = 1 if count <= adjectives * nouns // 2 else 2
    numbers = rng.choice(nouns * adjectives**parts, count, replace=False)
    return [_name(int(number), parts) for number in numbers]


def _name(number: int, adjectives: int) -> str:
    number, noun = divmod(number, len(NOUNS))
    words = [NOUNS[noun]]
    for _ in range(adjectives):
        number, adjective = divmod(number, len(ADJECTIVES))
        words.insert(0, ADJECTIVES[adjective])
    return "-".join(words)


def numbers(count: int, rng: np.random.Generator) -> list[str]:
    """`count` different numbers of 7 digits."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[str(int(rng.integers(1_000_000, 10_000_000)))] = None
    return list(found)


def uuids(count: int, rng: np.random.Generator) -> list[str]:
    return [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(count)]


def letters(count: int, size: int, rng: np.random.Generator, alphabet: str) -> list[str]:
    """`count` different strings of `size` random letters."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(alphabet[int(i)] for i in rng.integers(len(alphabet), size=size))] = None
    return list(found)


@cache
def listed_words() -> tuple[str, ...]:
    """Every short word that the packaged texts have in lower case, sorted."""
    texts = [packaged_text(name).read_text(encoding="utf-8") for name in ("book.txt", "held_out.txt")]
    pattern = rf"(?<![\w'-])[a-z]{{{LEAST},{MOST}}}(?![\w'-])"
    return tuple(sorted({word for text in texts for word in re.findall(pattern, text)}))


def vocabulary(count: int, rng: np.random.Generator) -> list[str]:
    """`count` different words in random order; joined in pairs where there are too few."""
    words = listed_words()
    found = dict.fromkeys(words[int(i)] for i in rng.permutation(len(words))[:count])
    while len(found) < count:
        first, second = (words[int(i)] for i in rng.integers(len(words), size=2))
        found[f"{first}-{second}"] = None
    return list(found)


class Essay:
    """Running text as words, without an end: after its last word the first follows.

    ends [W + 1] bool: a sentence ends before the word.
    """

    def __init__(self, text: str, name: str):
        self.words = text.split()
        self.name = name
        closed = [word.rstrip("\"'”’)_").endswith((".", "!", "?")) for word in self.words]
        self.ends = np.array([True, *closed])

    def sentences(self, begin: int, count: int) -> list[str]:
        """`count` words from word `begin` on, cut where sentences end."""
        size = len(self.words)
        places = [(begin + i) % size for i in range(count)]
        found, current = [], []
        for place in places:
            current.append(self.words[place])
            if self.ends[place + 1]:
                found.append(" ".join(current))
                current = []
        return [*found, " ".join(current)] if current else found

    def begin(self, rng: np.random.Generator) -> int:
        """A word that begins a sentence."""
        return int(rng.choice(np.flatnonzero(self.ends[:-1])))


def packaged_essay() -> Essay:
    return Essay(packaged_text("book.txt").read_text(encoding="utf-8"), "book.txt")


def essay_of(store: TokenStore, tokenizer: Any, tokens: int) -> Essay:
    """The first documents of a store as one essay, as many as hold `tokens`."""
    texts, held = [], 0
    for document in range(len(store)):
        ids = store.document(document)[: tokens - held]
        texts.append(tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))
        held += len(ids)
        if held >= tokens:
            break
    return Essay(" ".join(texts), ", ".join(store.names[: len(texts)][:5]))
