"""What an analysis may be asked for, and what each needs, so that a mistake is told before a weight is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from anchorlm.core import MANY, UserError, no_file, suggest
from anchorlm.data import TokenStore
from anchorlm.environment import environment
from anchorlm.eval.parts import Parts
from anchorlm.eval.suite import store_facts
from anchorlm.plan import ModelShape, Plan, layer_range
from anchorlm.settings import Strict, checked

from ..probes import cut_pieces

Progress = Callable[[str, int, int], None]
Sizes = tuple[int, ...] | None


class Options(Strict):
    """All that changes the figures, beside model and data. Lengths in tokens.

    window: beyond which a target counts as cross-window, by default the model's own. layers: those knocked out, or that
    keep tokens, such as "7,18-20". control: also measure noise of the removed branch's norm. windows, chunks, kept:
    sizes of the ablation's grid; kept: also how many tokens are chosen. results: a results.json of `anchorlm results`.
    """

    context: int = Field(1024, ge=2)
    documents: int = Field(4, ge=2, le=MANY)
    recall: int = Field(4, ge=0, le=MANY)  # generated recall texts of the knock-out
    window: int | None = Field(None, ge=1)
    layers: str | None = None
    control: bool = True
    windows: Sizes = None
    chunks: Sizes = None
    kept: Sizes = None
    results: str | None = None
    seed: int = Field(0, ge=0, lt=2**63)

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Options from keywords; None is not given. Raises UserError for an unknown one or a value out of range."""
        given = {name: value for name, value in values.items() if value is not None}
        options = checked(cls, given, "analyze option")
        for name in ("windows", "chunks", "kept"):
            sizes = getattr(options, name)
            if sizes is not None and (not sizes or min(sizes) < 1):
                raise UserError(f"analyze option {name} is {list(sizes)}; give whole numbers of at least 1")
        return options


@dataclass(frozen=True)
class Target:
    """The model that is looked at, as far as its config tells."""

    name: str
    plan: Plan
    shape: ModelShape

    def window(self, options: Options) -> int:
        """The window that splits targets. Raises UserError when neither the model nor the options have one."""
        found = options.window or self.plan.common_reach
        if found is None:
            raise UserError(f"{self.name} has no window, so no target lies beyond one; give --set window=128")
        return found

    def layers(self, options: Options) -> list[int]:
        """The layers to knock out, in order."""
        depth = self.shape.layers
        if options.layers is None:
            return list(range(depth))
        return sorted({layer for part in options.layers.split(",") for layer in layer_range(part, depth, "--layers")})

    def readers(self) -> list[tuple[int, str]]:
        """(layer, slot) of every reader, by depth."""
        return sorted((layer, name) for name, slot in self.plan.slots.items() for layer in slot.read)

    def check_context(self, options: Options) -> None:
        """Raise UserError for a context in which nothing lies beyond the window, or that the model cannot read."""
        window, context = self.window(options), options.context
        if context < window + 2:
            raise UserError(
                f"--context is {context}; a target beyond the window of {window} needs at least {window + 2} tokens"
            )
        limit = self.shape.max_positions
        if context > limit and any(reach.unlimited for reach in self.plan.layers):
            raise UserError(f"--context is {context}; layers with full attention know positions up to {limit:,}")

    def check_slots(self, what: str) -> None:
        if not self.plan.slots:
            raise UserError(f"{self.name} has no slot; {what} needs one, as `anchorlm convert` makes it")


@dataclass(frozen=True)
class Job:
    """One run: model (None where only its plan counts), text, options, where finished parts are kept, whom to tell."""

    model: Any
    target: Target
    tokenizer: Any
    store: TokenStore | None
    options: Options
    parts: Parts
    digest: str | None
    progress: Progress | None = None

    def tell(self, what: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(what, done, total)

    def text(self) -> TokenStore:
        assert self.store is not None, "checked before: this analysis takes text"
        return self.store

    def pieces(self) -> list[np.ndarray]:
        """Documents of `context` tokens."""
        return cut_pieces(self.text(), self.options.context, self.options.documents, "an analysis")

    def key(self, what: str, **values: Any) -> dict[str, Any]:
        """What a finished part is kept under."""
        return {"analysis": what, "model": self.digest, **values}

    def head(self, what: str, pieces: int | None = None) -> dict[str, Any]:
        """What every result says about itself."""
        return {
            "kind": what,
            "model": self.target.name,
            "digest": self.digest,
            "plan": self.target.plan.to_dict(),
            "data": None if self.store is None else store_facts(self.store),
            "n": pieces,
            "options": self.options.model_dump(mode="json"),
            "seed": self.options.seed,
            "environment": environment(self.model),
        }


READING = ("context", "documents", "window")  # options of every analysis that reads a text


@dataclass(frozen=True)
class Analysis:
    """One thing that can be asked for. check: raises UserError unless the model can be analysed so; text: takes text,
    always (True), never (False), or only if it is given (None); weights: whether they are needed; uses: options beside
    those of the text that is read; lacks: those of them that say nothing of the model, and what it has not; prepare:
    what is made of the text before anything is measured, so that a text or context that will not do is told then."""

    run: Callable[[Job], dict[str, Any]]
    check: Callable[[Target, Options], None]
    text: bool | None = True
    weights: bool = True
    uses: tuple[str, ...] = ()
    lacks: Callable[[Target, Options], dict[str, str]] = lambda target, options: {}
    prepare: Callable[[Job], Any] = lambda job: None

    def used(self, text: bool) -> set[str]:
        """The options that change its figures; text: whether one is given."""
        reads = self.text or (self.text is None and text)
        return {"seed", *self.uses, *(READING if reads else ())}


def names_of(what: str | Iterable[str], known: Iterable[str]) -> list[str]:
    """Names from "knockout,similarity" or a list, in order, each once. Raises UserError for an unknown one."""
    given = what.split(",") if isinstance(what, str) else list(what)
    names = list(dict.fromkeys(name.strip() for name in given if name.strip()))
    for name in names:
        if name not in known:
            raise UserError(f"analysis {name!r} is unknown; {suggest(name, known)}")
    if not names:
        raise UserError(f"no analysis named; {suggest('', known)}")
    return names


def existing(path: str | Path, what: str) -> Path:
    """The path, if it is a file."""
    if not Path(path).is_file():
        raise UserError(f"{what} {path} {no_file(path)}")
    return Path(path)
