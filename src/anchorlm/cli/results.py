"""`anchorlm results`: the tables behind the claims, by one command."""

from __future__ import annotations

from . import options


def results(json: options.Json = False) -> None:
    """Measure and print the results table."""
    raise NotImplementedError
