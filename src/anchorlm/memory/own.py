"""Rules of one's own: a Python file that defines them, imported by name of the file."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from traceback import walk_tb
from typing import Any

from ..core import UserError, no_file
from ..rules import RULES
from .base import Memory, RuleError

PREFIX = "anchorlm_rules_"  # of the modules that these files become
VARIABLE = "ANCHORLM_RULES"  # files for programs that this one starts, separated as in PATH


def load_rules(*files: str | Path) -> list[str]:
    """Import these Python files and give the names of the rules that they add, those of an earlier call too.

    A file is run as any program is: only load what you trust. Raises UserError for a file that is not there, fails, or
    adds no rule, and for a rule that has another's name.
    """
    found = [rule for file in files for rule in _load(Path(file).expanduser().resolve(), str(file))]
    return list(dict.fromkeys(found))


def load_listed() -> None:
    """The files that the environment names."""
    load_rules(*filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))


def blamed(error: BaseException) -> str | None:
    """One line that names the rule from a loaded file in which an error arose, or which gave what no memory may.

    None where no such rule had a part in it.
    """
    if isinstance(error, RuleError):
        module, owner, where, what = error.rule.__module__, error.rule.__qualname__, "", str(error)
    else:
        frames = [(f, line) for f, line in walk_tb(error.__traceback__) if _is_own(f.f_globals.get("__name__"))]
        if not frames:
            return None
        frame, line = frames[-1]
        module, (owner, _, name) = frame.f_globals["__name__"], frame.f_code.co_qualname.rpartition(".")
        where, what = f", line {line}, in {name}", f"{type(error).__name__}: {error}"
    if not _is_own(module):
        return None
    file = sys.modules[module].__file__
    return f"rule {_names(module, owner)} ({file}{where}): {what}; anchorlm doctor --rules {file} puts it to its checks"


def _is_own(module: Any) -> bool:
    return str(module).startswith(PREFIX)


def _names(module: str, owner: str) -> str:
    """The rule that a class of a loaded file belongs to; all of the file where it belongs to none alone."""
    rules = _rules_of(module)
    found = [rule for rule in rules if owner in (Memory.rules[rule].__qualname__, RULES[rule].__qualname__)]
    return ", ".join(map(repr, found or rules))


def _load(path: Path, said: str) -> list[str]:
    if not path.is_file():
        raise UserError(f"rules file {said}: {no_file(path, 'no such file')}")
    name = PREFIX + path.stem
    known = sys.modules.get(name)
    if known is None or Path(str(known.__file__)) != path:
        _run(path, said, name)
    if not (found := _rules_of(name)):
        raise UserError(f"rules file {said} adds no rule; see docs/new-memory.md")
    return found


def _rules_of(module: str) -> list[str]:
    return [rule for rule, memory in Memory.rules.items() if memory.__module__ == module]


def _run(path: Path, said: str, name: str) -> None:
    if name in sys.modules:
        raise UserError(f"rules file {said} is called like {sys.modules[name].__file__}; rename one")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"rules file {said} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up while it is made
    try:
        with redirect_stdout(sys.stderr):  # what a file prints is no result of ours
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name)
        for rule in _rules_of(name):
            del Memory.rules[rule], RULES[rule]
        if isinstance(error, KeyboardInterrupt):
            raise
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"rules file {said} cannot be used: {kind}{' '.join(str(error).split())}") from error
