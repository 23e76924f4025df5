"""Every table and figure of the paper: what measures it here, or why nothing does yet. One line to add or change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import UserError, suggest
from . import figure3, shapes, table1, table2
from .lab import Lab

ALL = "all"


@dataclass(frozen=True)
class Item:
    """build: measures the item and returns its tables, claims, figures and notes as plain data; or what it `needs`.

    texts: whether texts are read; without, the item follows from plans and shapes alone.
    """

    title: str
    build: Callable[[Lab], dict[str, Any]] | None = None
    needs: str = ""
    texts: bool = True


ITEMS: dict[str, Item] = {
    "table1": Item("Which states matter: slots off by groups of layers", table1.build),
    "table2": Item("A shared state beside private states", table2.build),
    "table3": Item("Time from end to end", needs="a timed batch on a GPU; `anchorlm results core` times one row here"),
    "table4": Item("Small models from scratch on MAD", needs="a tie to `anchorlm mad`, which measures it"),
    "table5": Item("RULER of a hybrid", needs="a trained 3:1 hybrid; `anchorlm eval --suite ruler` measures one"),
    "figure1": Item(
        "How alike the states of layers are", needs="a tie to `anchorlm analyze --what similarity`, which measures it"
    ),
    "figure2": Item(
        "One layer's branch removed, by distance",
        needs="a tie to `anchorlm analyze --what knockout`, which measures it",
    ),
    "figure3": Item("Transfer error against perplexity", figure3.build),
    "figure4": Item(
        "CKA of anchor and interior layers", needs="a tie to `anchorlm analyze --what similarity`, which measures it"
    ),
    "figure5": Item("State and coverage", shapes.figure5, texts=False),
    "figure6": Item("Accuracy against cost", needs="a tie to `anchorlm analyze --what cost`, which measures it"),
    "figure7": Item("3:1 interleaving", shapes.figure7, texts=False),
    "figure8": Item(
        "Rotation angles of read maps", needs="a tie to `anchorlm analyze --what readmaps`, which measures it"
    ),
    "figure9": Item(
        "CKA against cosine, three memories", needs="a tie to `anchorlm analyze --what similarity`, which measures it"
    ),
    "figure10": Item("Needles of a hybrid", needs="a trained 3:1 hybrid"),
    "figure11": Item(
        "Read-outs in a dominant plane", needs="a tie to `anchorlm analyze --what readmaps`, which measures it"
    ),
}


def chosen(names: Sequence[str]) -> list[str]:
    """Items to run: those named, or with "all" every one that can be built, in the order of ITEMS.

    Raises UserError for none, an unknown one, and one that is named but not built yet.
    """
    if not names:
        raise UserError(f"reproduce needs an item; {suggest('', [*ITEMS, ALL])}")
    for name in names:
        if name not in ITEMS and name != ALL:
            raise UserError(f"item {name!r} is unknown; {suggest(name, [*ITEMS, ALL])}")
        if name != ALL and ITEMS[name].build is None:
            raise UserError(f"item {name!r} is not built yet: it needs {ITEMS[name].needs}")
    return [name for name, item in ITEMS.items() if item.build and (ALL in names or name in names)]
