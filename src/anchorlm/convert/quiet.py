"""Loading without the progress bars and advice that transformers prints for its own users."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    had_bar, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if had_bar:
            transformers_logging.enable_progress_bar()
