"""What an evaluation may be asked for, checked before any text is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from anchorlm.core import LARGEST, MANY, UserError, not_whole, suggest
from anchorlm.data.needles import check_kind, choose_templates
from anchorlm.eval.niah import DEPTHS
from anchorlm.settings import once

Own = TypeVar("Own")
TEXT, FILLER = HAYSTACKS = ("text", "filler")


@dataclass(frozen=True)
class EvalOptions:
    """What changes the figures (but for batch and block, which must not). Lengths in tokens."""

    context: int = 2048
    limit: int | None = None  # perplexity documents, and needles or samples per length, at most
    seed: int = 0
    window: int | None = None  # of the cross-window targets; by default the model's own
    tails: bool = False  # also score a document's rest shorter than the context
    lengths: tuple[int, ...] | None = None  # of generated prompts; by default the context
    depths: tuple[float, ...] = DEPTHS
    needles: int = 4  # in each cell of lengths x depths
    kind: str = "number"
    haystack: str = "text"  # of needles: that of --data, or "filler", sentences repeated
    templates: str | tuple[str, ...] = "heldout"
    batch: int = 1
    block: int = 512
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # suite -> its own options, as they were given

    @classmethod
    def of(cls, **values: Any) -> EvalOptions:
        """Options from keywords; an unknown one is an error that names a near one.

        A mapping holds the own options of the suite that it is named after: `ruler={"tasks": ["vt"]}`.
        """
        own = {name: value for name, value in values.items() if isinstance(value, Mapping)}
        known = [field.name for field in fields(cls) if field.name != "own"]
        for name in values:
            if name not in known and name not in own:
                raise UserError(f"eval option {name!r} is unknown; {suggest(name, known)}")
        plain = {name: listed(value) for name, value in values.items() if name not in own}
        check_types(cls, plain)
        options = cls(**plain, own=own)
        for name in ("context", "block", "limit", "window"):
            check_count(name, getattr(options, name))
        for name in ("needles", "batch"):
            check_count(name, getattr(options, name), most=MANY)
        check_kind(options.kind)
        if options.haystack not in HAYSTACKS:
            raise UserError(f"eval option haystack is {options.haystack!r}; {suggest(options.haystack, HAYSTACKS)}")
        choose_templates(options.wordings)
        check_list("depths", options.depths, "numbers between 0 and 1", lambda x: 0 <= x <= 1)
        if options.lengths is not None:
            check_lengths("lengths", options.lengths)
        return replace(options, **{name: once(getattr(options, name)) for name in ("lengths", "depths", "templates")})

    @property
    def wordings(self) -> str | list[str]:
        return self.templates if isinstance(self.templates, str) else list(self.templates)

    def seen_through(self, window: int | None) -> EvalOptions:
        """The same with the window of the models that are measured, where none was given."""
        return replace(self, window=self.window or window)

    @property
    def prompt_lengths(self) -> tuple[int, ...]:
        """Tokens of generated prompts."""
        return self.lengths or (self.context,)

    def own_of(self, suite: str, kind: type[Own]) -> Own:
        """The suite's own options as the dataclass `kind`; an unknown one is an error that names a near one."""
        given, known = self.own.get(suite, {}), [field.name for field in fields(kind)]
        for name in given:
            if name not in known:
                raise UserError(f"eval option '{suite}.{name}' is unknown; {suggest(name, known)}")
        values = {name: listed(value) for name, value in given.items()}
        check_types(kind, values, f"{suite}.")
        return kind(**{name: once(value) for name, value in values.items()})

    def gives(self, suite: str, name: str) -> bool:
        """Whether an own option of the suite was given, if only as its default."""
        return name in self.own.get(suite, {})


def listed(value: Any) -> Any:
    """The value as it is kept: lists as tuples, paths as text."""
    if isinstance(value, Mapping):
        return {name: listed(part) for name, part in value.items()}
    return tuple(value) if isinstance(value, list) else str(value) if isinstance(value, Path) else value


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Mapping: "keys and values",
         type(None): "null"}  # fmt: skip
SEVERAL = {int: "whole numbers", float: "numbers", str: "names"}


def check_types(kind: type, values: Mapping[str, Any], prefix: str = "") -> None:
    """Raise UserError for a value that is not of the type its field of the dataclass `kind` says, nothing converted."""
    for name, value in values.items():
        hint = get_type_hints(kind)[name]
        try:
            TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError:
            shown = list(value) if isinstance(value, tuple) else value
            raise UserError(f"eval option {prefix}{name} is {shown!r}; give {_in_words(hint)}") from None


def _in_words(hint: Any) -> str:
    """`a list of whole numbers or null` of tuple[int, ...] | None."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is tuple:
        return f"a list of {SEVERAL[inner[0]]}"
    return WORDS.get(kind) or " or ".join(_in_words(part) for part in inner)


def check_count(name: str, value: Any, least: int = 1, most: int = LARGEST) -> None:
    """Raise UserError unless the option is a whole number from `least` to `most`, or None."""
    if value is not None and (needed := not_whole(value, least, most)):
        raise UserError(f"eval option {name} is {value!r}; {needed} is needed")


def check_lengths(name: str, values: Any) -> None:
    """Raise UserError unless the option is a list of numbers of tokens."""
    check_list(name, values, f"whole numbers from 1 to {LARGEST:,}", lambda x: x == int(x) and 1 <= x <= LARGEST)


def check_list(name: str, values: Any, wanted: str, fits: Callable[[Any], bool]) -> None:
    numbers = isinstance(values, tuple) and all(_is_number(x) and fits(x) for x in values)
    shown = list(values) if isinstance(values, tuple) else values
    if not numbers or not values:
        raise UserError(f"eval option {name} is {shown!r}; give a list of {wanted}")


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < math.inf


def check_names(name: str, values: Any, allowed: Any) -> tuple[str, ...]:
    """Names from "a,b" or a list, each of them among `allowed` and once. Raises UserError with a near name."""
    found = values.split(",") if isinstance(values, str) else values
    if not isinstance(found, list | tuple) or not found:
        shown = list(values) if isinstance(values, tuple) else values
        raise UserError(f"eval option {name} is {shown!r}; give names out of {', '.join(allowed)}")
    found = [str(value).strip() for value in found]
    for value in found:
        if value not in allowed:
            raise UserError(f"eval option {name}: {value!r} is unknown; {suggest(value, allowed)}")
    return tuple(dict.fromkeys(found))
