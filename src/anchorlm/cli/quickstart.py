"""`anchorlm quickstart`: the main job, on a packaged real model."""

from __future__ import annotations

from . import options


def quickstart(json: options.Json = False) -> None:
    """See what the product does in a few minutes."""
    raise NotImplementedError
