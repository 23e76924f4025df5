"""Flags that several verbs share, `--set a.b=c`, and flags that take several values."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

Model = Annotated[str, typer.Argument(metavar="DIR", help="a folder written by convert, train or merge, or a BASE")]
BaseName = Annotated[str, typer.Argument(metavar="BASE", help="a folder, a hub id, a .gguf file, or smollm2-135m")]
Out = Annotated[str, typer.Option("--out", "-o", metavar="DIR", help="the folder to write")]
PlanName = Annotated[
    str, typer.Option("--plan", metavar="PLAN", help="a preset (anchor, anchor-f, swa, ...) or a YAML file")
]
Sets = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="replace one value, such as window=128; repeatable")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of everything random")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace the output folder if it exists")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout and nothing else there")]
AnyBase = Annotated[
    bool, typer.Option("--any-base", help="accept a base whose weights differ from the stored fingerprint")
]
BaseOverride = Annotated[str | None, typer.Option("--base", metavar="BASE", help="where the base is now, if it moved")]


Rules = Annotated[
    list[str], typer.Option("--rules", metavar="FILE", help="a Python file with memory rules of your own; repeatable")
]


NAMED = {  # what a flag or an argument names, by its metavar
    "DIR": "a folder", "RUN": "a folder", "RUN...": "a folder", "TEXT...": "a text file or a folder of them",
    "FILE": "a file", "results.json": "a file", "PAGE.html": "a page, such as report.html", "PLAN.yaml": "a YAML file",
    "BASE": "a folder, a hub id or a .gguf file", "[DIR|BASE]": "a folder or a BASE",
    "BASE|teacher|window": "a model",
}  # fmt: skip


class Verb(TyperCommand):
    """A verb whose numbers are written in ASCII digits and fit into 64 bits; Python's own `int` takes any others.

    An empty name of a file or a folder is refused: as a path it would be the folder one is in.
    """

    def invoke(self, ctx: Any) -> Any:
        from .show import apart

        with apart():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from ..core import UserError

        kinds = {name: param.type_descriptor.annotation for param in self.params for name in param.opts}
        for arg, after in pairwise([*args, ""]):
            name, equals, value = arg.partition("=")
            value = value if equals else after
            if kinds.get(name) in (int, float) and not _readable(value):
                raise UserError(f"{name} {value[:40]!r} is no number below 2**63 in the digits 0 to 9")
        rest = super().parse_args(ctx, args)
        for param in self.params:
            given = ctx.params.get(str(param.name))
            if param.metavar in NAMED and was_given(ctx, str(param.name)) and "" in _several(given):
                flag = param.opts[0] if param.opts[0].startswith("-") else param.metavar
                raise UserError(f"{flag} is empty; name {NAMED[param.metavar]}")
        return rest


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _readable(number: str) -> bool:
    digits = number.lstrip("+-").replace("_", "")
    return number.isascii() and len(number) <= 40 and not (digits.isdecimal() and int(digits) >= 2**63)


class SeveralValues(Verb):
    """A verb whose list options take several values at once: `--data a.txt b.txt` as well as `--data a --data b`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = [name for param in self.params if getattr(param, "multiple", False) for name in param.opts]
        return super().parse_args(ctx, spread(args, names))


def spread(args: Iterable[str], names: Iterable[str]) -> list[str]:
    """Repeat a list option before each of its values; any argument that starts with `-` ends the values."""
    result: list[str] = []
    current, names = "", set(names)
    for arg in args:
        if arg.startswith("-") and arg != "-":
            current = arg if arg in names else ""
            result += [] if current else [arg]
        else:
            result += [current, arg] if current else [arg]
    return result


def listed(values: Iterable[str], flag: str) -> list[str]:
    """Values of a list option that may also be joined by commas; UserError where it is given and names nothing."""
    from ..core import UserError

    given = list(values)
    found = [part.strip() for value in given for part in value.split(",") if part.strip()]
    if given and not found:
        raise UserError(f"{flag} {' '.join(given)!r} names nothing; leave it out for the default")
    return found


def whole_numbers(
    values: Iterable[str], flag: str, example: str, least: int = 1, most: int = 2**31 - 1
) -> tuple[int, ...]:
    """Values of a list option as whole numbers, in the order given, each once."""
    from ..core import UserError

    texts = listed(values, flag)
    for text in texts:
        if not re.fullmatch("[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise UserError(f"{flag} {text!r} is no whole number from {least} to {most:,}; give {example}")
    return tuple(dict.fromkeys(map(int, texts)))


def mix_overrides(values: Iterable[str]) -> list[str]:
    """`recall=0.2` as the recipe's override `data.mix.recall=0.2`."""
    from ..core import UserError

    for text in values:
        kind, equals, share = text.partition("=")
        if not (kind.strip().isidentifier() and equals and share):
            raise UserError(f"--mix {text!r} must look like recall=0.2")
    return [f"data.mix.{text.strip()}" for text in values]


def parse_sets(values: Iterable[str]) -> dict[str, Any]:
    """`["slots.head.chunk=64", "window=128"]` -> `{"slots": {"head": {"chunk": 64}}, "window": 128}`, YAML-typed."""
    from ..core import UserError

    result: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            raise UserError(f"--set {text!r} must look like window=128 or slots.head.chunk=64")
        place = result
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise UserError(f"--set {text!r}: {name} was given a single value before")
        place[names[-1]] = _typed(text, value)
    return result


def _typed(text: str, value: str) -> Any:
    from ..core import UserError

    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):  # an impossible date is a ValueError
        raise UserError(f"--set {text!r}: the value is not valid YAML") from None


def use_rules(files: Iterable[str]) -> None:
    """Make rules of one's own known, to this program and to those that it starts."""
    if files:
        from ..memory.own import VARIABLE, load_rules

        load_rules(*files)
        known = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*known, *map(os.path.abspath, files)]))


def check_device(name: str) -> str:
    """The name, if torch can put a tensor there; auto is the first GPU, if there is one."""
    import torch

    from ..core import UserError

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0][:120]
        raise UserError(f"device {name!r} cannot be used here: {reason}") from None
    if torch.device(name).type == "meta":
        raise UserError(f"device {name!r} holds no values; allowed: auto, cpu, cuda, cuda:N")
    return name


def first_process() -> bool:
    """Whether this is the one process that prints, where torchrun or `accelerate launch` started several."""
    return os.environ.get("RANK", "0") == "0"


def own_device(name: str) -> str:
    """The device of this process: of several on one machine each has its own GPU."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" and "LOCAL_RANK" in os.environ else name


def check_output(path: str, overwrite: bool) -> None:
    """Refuse an occupied output before any weight is loaded."""
    from pathlib import Path

    from ..core import UserError, check_folder, occupied

    check_folder(path)
    folder = Path(path)
    if folder.is_dir() and occupied(folder) and not overwrite:
        raise UserError(f"output folder {folder} exists and is not empty; choose another or pass --overwrite")


def was_given(ctx: typer.Context, name: str) -> bool:
    """Whether the flag stands on the command line, even with its default."""
    return getattr(ctx.get_parameter_source(name), "name", "DEFAULT") != "DEFAULT"


def on_terminal() -> bool:
    return sys.stderr.isatty()
