"""One set of texts for training and evaluation: some files are kept apart."""

from __future__ import annotations

from collections.abc import Sequence

from ..data import find_files

EVERY = 10  # one file of so many is evaluated on


def apart(paths: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(training, evaluation): of several files every tenth, counted from the last, is kept for evaluation.

    A single file is evaluation text. Raises UserError for a file that does not exist.
    """
    files = [str(file) for file in find_files(paths)]
    held = files[::-1][::EVERY][::-1]
    return tuple(file for file in files if file not in held), tuple(held)
