"""Every table and figure of the paper and what measures it here. One line to add or change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import UserError, suggest
from . import alike, branches, costs, figure3, hybrid, shapes, table1, table2, table4, turning
from .lab import Lab

ALL = "all"


@dataclass(frozen=True)
class Item:
    """build: measures the item and returns its tables, claims, figures and notes as plain data.

    rows: those of the `table` in rows.yaml that are trained for it; texts: whether texts are read; base: whether the
    scale's model is; sizes: the parts of the scale's `measures` that it uses. An item with none of them follows from
    plans and shapes alone.
    """

    title: str
    build: Callable[[Lab], dict[str, Any]]
    rows: tuple[str, ...] = ()
    table: str = "slots"
    texts: bool = True
    base: bool = True
    sizes: tuple[str, ...] = ()


SHAPES = {"texts": False, "base": False}
ITEMS: dict[str, Item] = {
    "table1": Item("Which states matter: slots off by groups of layers", table1.build, (table1.ROW,)),
    "table2": Item("A shared state beside private states", table2.build, table2.ROWS),
    "table3": Item("Time from end to end", costs.table3, texts=False, sizes=("timing",)),
    "table4": Item("Small models from scratch on MAD", table4.table4, **SHAPES, sizes=("mad",)),
    "table5": Item("RULER of a hybrid", hybrid.table5, hybrid.ASKED, sizes=("ruler",)),
    "figure1": Item("How alike the states of layers are", alike.figure1, (alike.ROW,), sizes=("similarity",)),
    "figure2": Item("One layer's branch removed, by distance", branches.figure2, (branches.ROW,), sizes=("knockout",)),
    "figure3": Item("Transfer error against perplexity", figure3.build, figure3.ARMS, "figure3"),
    "figure4": Item("CKA of anchor and interior layers", alike.figure4, (alike.ROW,), sizes=("similarity",)),
    "figure5": Item("State and coverage", shapes.figure5, **SHAPES),
    "figure6": Item("Accuracy against cost", costs.figure6, costs.MODELS, sizes=("ar", "timing")),
    "figure7": Item("3:1 interleaving", shapes.figure7, **SHAPES),
    "figure8": Item("Rotation angles of read maps", turning.figure8, (turning.ROW,), sizes=("readmaps",)),
    "figure9": Item("CKA against cosine, three memories", alike.figure9, tuple(alike.MEMORIES), sizes=("similarity",)),
    "figure10": Item("Needles of a hybrid", hybrid.figure10, hybrid.SEARCHED, sizes=("niah",)),
    "figure11": Item("Read-outs in a dominant plane", turning.figure11, (turning.ROW,), sizes=("readmaps",)),
}


def chosen(names: Sequence[str]) -> list[str]:
    """Items to run: those named, or every one with "all", in the order of ITEMS.

    Raises UserError for none and for an unknown one.
    """
    if not names:
        raise UserError(f"reproduce needs an item; {suggest('', [*ITEMS, ALL])}")
    for name in names:
        if name not in ITEMS and name != ALL:
            raise UserError(f"item {name!r} is unknown; {suggest(name, [*ITEMS, ALL])}")
    return [name for name in ITEMS if ALL in names or name in names]
