"""Write requirements.lock: the exact versions, in this environment, of everything anchorlm[dev] depends on."""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Exact versions for development and for `make install`; written by `make lock`, not by hand.
# torch is named without a build tag: an index that offers the CPU build serves that one.
"""


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["dev"]]


def closure(wanted: list[Requirement]) -> dict[str, str]:
    """Name -> public version of every distribution that the requirements reach here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    while wanted:
        requirement = wanted.pop()
        for extra in ["", *sorted(requirement.extras)]:
            key = (canonicalize_name(requirement.name), extra)
            if key in seen:
                continue
            seen.add(key)
            installed = distribution(requirement.name)
            found[key[0]] = installed.version.split("+")[0]
            wanted += [
                child
                for child in map(Requirement, installed.requires or [])
                if child.marker is None or child.marker.evaluate({"extra": extra})
            ]
    return found


def main() -> None:
    versions = closure(declared())
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    (ROOT / "requirements.lock").write_text(HEADER + "\n".join(lines) + "\n")
    print(f"requirements.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
