"""Trained adapters that come with the package: each is known by its name wherever a folder is."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped() -> list[str]:
    """Their names; none in a copy of the package without them."""
    home = _home()
    return sorted(folder.name for folder in home.iterdir() if folder.is_dir()) if home.is_dir() else []


def located(path: str | Path) -> str | Path:
    """The folder of the adapter of that name; any other path, and a folder that is here under that name, as it is."""
    return _home() / path if str(path) in shipped() and not Path(path).exists() else path


def _home() -> Path:
    return Path(str(resources.files("anchorlm"))) / "adapters"
