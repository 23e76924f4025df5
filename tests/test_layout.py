"""A package imports only from those below it, and files stay short enough to read."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src" / "anchorlm"

# From the top down. Names on one line do not import each other.
ORDER = [
    ["__main__"],
    ["cli"],
    ["reproduce"],
    ["mad", "compare"],
    ["quickstart", "results"],
    ["analyze"],
    ["report", "bench", "eval", "train", "generate"],
    ["doctor", "reading"],
    ["conformance"],
    ["data"],
    ["convert"],
    ["settings"],
    ["hf"],
    ["nn"],
    ["memory"],
    ["ops"],
    ["state"],
    ["describe"],
    ["presets"],
    ["plan"],
    ["reach", "plan_parts"],
    ["linear_rules"],
    ["rules", "shape"],
    ["environment"],
    ["core", "shipped"],
]
LEVEL = {name: level for level, names in enumerate(reversed(ORDER)) for name in names}
ONLY_IN = {
    "transformers": {name for name, level in LEVEL.items() if level >= LEVEL["hf"]},
    "peft": {"convert"},
    "typer": {"cli"},
}
LONGEST_FILE = 350
FILES = sorted(ROOT.rglob("*.py"))


def package_of(path):
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path):
    """(line, absolute module name) of every import of a file, wherever in the file it stands."""
    parts = ("anchorlm", *path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            head = list(parts[: len(parts) - node.level]) if node.level else []
            module = ".".join([*head, *([node.module] if node.module else [])])
            below_root = module == "anchorlm"  # `from . import x` at the root names the package in the alias
            yield from ((node.lineno, f"{module}.{a.name}" if below_root else module) for a in node.names)


def wrong(path):
    """One line for each import that breaks the order."""
    own = package_of(path)
    for line, module in imported(path):
        head, _, rest = module.partition(".")
        if head in ONLY_IN and own not in ONLY_IN[head]:
            yield f"{own}/{path.name}:{line} imports {head}, which is left to {', '.join(sorted(ONLY_IN[head]))}"
        target = rest.partition(".")[0]
        if head != "anchorlm" or target == own or target not in LEVEL:
            continue
        if LEVEL[target] >= LEVEL[own]:
            yield f"{own}/{path.name}:{line} imports {target}, which is not below {own}"


LAYERED = [path for path in FILES if path != ROOT / "__init__.py"]  # the root names everything, lazily


@pytest.mark.parametrize("path", LAYERED, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    own = package_of(path)
    assert own in LEVEL, f"{own} has no place in ORDER"
    assert not list(wrong(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


def test_the_check_sees_a_violation(tmp_path, monkeypatch):
    import test_layout

    monkeypatch.setattr(test_layout, "ROOT", tmp_path)
    bad = tmp_path / "nn" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("def f():\n    from ..hf import model\n    import peft\n    from .. import train\n")
    assert [line.split(" imports ")[1].split(",")[0].split(";")[0] for line in wrong(bad)] == ["hf", "peft", "train"]
