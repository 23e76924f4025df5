"""What a placement may be asked for, checked before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from anchorlm.core import LARGEST, MANY, UserError, not_whole, suggest
from anchorlm.plan import ModelShape, Reach, layer_range

from .budget import FULL, Need, parse_size
from .knocked import Score, read_knocked

COUNT = 128  # exact tokens of a KV head, if nothing is said
RANGES = {
    "window": (1, LARGEST), "sinks": (0, LARGEST), "context": (2, LARGEST), "documents": (2, MANY),
    "kept": (1, LARGEST), "steps": (0, LARGEST), "seed": (0, 2**63 - 1),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """All that changes the figures, beside model and data. Lengths in tokens.

    budget: bytes that the memory may add to a window in every layer, as a number or such as "2MB".
    context: length of a document, and tokens that a layer with full attention must hold.
    documents: pieces of text, and needle prompts, at most. layers: those to try, such as "7,18-20"; all by default.
    keep: "full" attention in layers or in single KV "heads", or "slots"; several with commas, the preferred first;
        "mixed" is "full,slots". heads: also measure single KV heads, which keep "heads" does anyway: those of `layers`
        if given, else of the layers that matter.
    kept: exact tokens of a KV head in each layer that has some; by default 128, and for slots of rule "kept" alone the
        bytes are divided over the layers in several ways, of which the best is taken.
    knockout: a knockout.json of a trained model with fast weights in every layer, by which slots of fast weights are
        then placed.
    steps: layers given back by the greedy search; by default as many as the budget holds, at least 6;
        with 0 the scan's own order stands in for it.
    """

    budget: int | str
    window: int = 128
    sinks: int = 4
    context: int = 1024
    documents: int = 4
    keep: str = FULL
    rule: str = "swiglu-ttt"
    kept: int | None = None
    layers: str | None = None
    steps: int | None = None
    needles: bool = True
    heads: bool = False
    oracle: bool = False
    knockout: str | None = None
    seed: int = 0

    @classmethod
    def of(cls, **values: Any) -> Settings:
        """Settings from keywords; an unknown one is an error that names a near one."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise UserError(f"place option {name!r} is unknown; {suggest(name, known)}")
        return cls(**values)

    def check(self, shape: ModelShape) -> Need:
        """What the plan is for. Raises UserError for any value out of range."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and (needed := not_whole(value, least, most)):
                raise UserError(f"--{name} is {value!r}; it must be {needed}")
        if self.window + self.sinks >= self.context:
            held = f"--window is {self.window} and --sinks is {self.sinks}"
            raise UserError(f"{held}; together they must be below --context, {self.context} tokens")
        if self.context > shape.max_positions:
            raise UserError(f"--context is {self.context}; the model knows positions up to {shape.max_positions:,}")
        self.candidates(shape.layers)
        self.knocked(shape.layers)
        reach = Reach("window", self.window, self.sinks)
        size = parse_size(self.budget)
        return Need(shape, reach, self.context, size, self.keep, self.rule, self.count).check()

    def candidates(self, depth: int) -> list[int]:
        """The layers to try, in order."""
        if self.layers is None:
            return list(range(depth))
        named = {layer for part in self.layers.split(",") for layer in layer_range(part, depth, "--layers")}
        return sorted(named)

    def knocked(self, depth: int) -> Score | None:
        """What each layer's trained fast weights are missed by, where that is given."""
        return None if self.knockout is None else read_knocked(self.knockout, depth)

    @property
    def count(self) -> int:
        """Exact tokens of a KV head, where they are not divided."""
        return COUNT if self.kept is None else self.kept

    def divides(self, need: Need) -> bool:
        """Whether the bytes of kept tokens are divided over the layers by measurement."""
        return need.kinds == ("kept",) and self.kept is None and not self.heads

    def search(self, need: Need) -> int:
        """Steps of the greedy search."""
        if self.steps is not None:
            return self.steps
        return max(6, need.budget // need.size(FULL)) if FULL in need.kinds else 6
