"""How far attention sees: the reach of one layer, and of single KV heads of it, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from .core import UserError
from .rules import mapping, number_range, one_of, strict, whole

KINDS = ("full", "window", "terrace", "segment", "none")
POSITIONS = ("rope", "none")

MOST_HEADS = 4096  # the number of a model's KV heads is not known where a plan is read

Heads = tuple[int, ...]


@dataclass(frozen=True)
class Reach:
    """How far one layer's attention sees.

    `window` counts the current token. `sinks` first tokens stay visible beyond the window, at compact positions.
    A terrace sees its own block of `window` tokens and the whole block before it, blocks aligned to position 0
    (LoLCATs, arXiv 2410.10254). `segment` tokens form such blocks and attention stays inside its own.
    `meta` learned logits take part in the denominator alone, and positions "none" leaves RoPE out (Lizard, arXiv
    2507.09025).
    `heads` names KV heads that see otherwise, each with its own reach; the query heads of a KV head follow it
    (DuoAttention, arXiv 2410.10819).
    """

    kind: str = "full"
    window: int | None = None
    sinks: int = 0
    segment: int | None = None
    meta: int = 0
    positions: str = "rope"
    heads: tuple[tuple[int, Reach], ...] = ()

    @classmethod
    def from_dict(cls, values: Any, where: str, common: Reach | None = None) -> Reach:
        """Read `{kind: window, window: 128, heads: {0: full}}`; `{heads: {0: full}}` alone leaves the rest as `common`.

        Raises UserError for an unknown key and a head named twice; `check` looks at the values.
        """
        given = strict(cls, values, where)
        alone = set(given) == {"heads"}
        found = given.pop("heads", None)
        heads = _named_heads({} if found is None else found, f"{where}.heads")
        rest = common if common is not None and alone else cls(**given)
        return replace(rest, heads=tuple(sorted({**dict(rest.heads), **heads}.items())))

    def to_dict(self) -> dict[str, Any]:
        """The form that is stored: `kind`, and what is not at its default."""
        own = [(f.name, getattr(self, f.name), f.default) for f in fields(self) if f.name != "heads"]
        values = {name: value for name, value, default in own if name == "kind" or value != default}
        heads = {str(head): reach.to_dict() for head, reach in self.heads}
        return values | ({"heads": heads} if heads else {})

    def check(self, where: str, kv_heads: int) -> None:
        """Raise UserError, naming field, value and what is allowed."""
        self._check_own(where)
        for head, reach in self.heads:
            if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < kv_heads:
                raise UserError(f"{where}.heads names head {head!r}; the model has KV heads 0 to {kv_heads - 1}")
            if reach.heads:
                raise UserError(f"{where}.heads.{head} has heads; a head has a reach of its own and no heads")
            reach._check_own(f"{where}.heads.{head}")
            if reach.meta:
                raise UserError(f"{where}.heads.{head}.meta is {reach.meta}; meta logits belong to a layer's own reach")
        if len(dict(self.heads)) < len(self.heads):
            raise UserError(f"{where}.heads names a head twice: {[head for head, _ in self.heads]}")

    def _check_own(self, where: str) -> None:
        one_of(self.kind, KINDS, f"{where}.kind")
        one_of(self.positions, POSITIONS, f"{where}.positions")
        for name, kinds in (("window", ("window", "terrace")), ("segment", ("segment",))):
            value = getattr(self, name)
            if self.kind in kinds:
                whole(value, 1, f"{where}.{name}")
            elif value is not None:
                self._refuse(where, name, kinds)
        for name, kinds in (("sinks", ("window",)), ("meta", ("window", "terrace"))):
            whole(getattr(self, name), 0, f"{where}.{name}")
            if getattr(self, name) and self.kind not in kinds:
                self._refuse(where, name, kinds)
        if self.sinks and self.positions == "none":
            raise UserError(f"{where}.sinks is {self.sinks} but positions is 'none'; sinks need compact positions")

    def _refuse(self, where: str, name: str, kinds: tuple[str, ...]) -> None:
        takes = f"only kind {' or '.join(map(repr, kinds))} takes it"
        raise UserError(f"{where}.{name} is {getattr(self, name)!r} but kind is {self.kind!r}; {takes}")

    @property
    def limit(self) -> int | None:
        """The most tokens that a query sees, without sinks and named heads; None where it sees all."""
        if self.kind == "terrace":
            return 2 * (self.window or 0)
        return {"full": None, "none": 0}.get(self.kind, self.window or self.segment)

    @property
    def least(self) -> int | None:
        """The fewest tokens that a query late in a text sees, itself included; None where it sees all."""
        if self.kind == "terrace":
            return (self.window or 0) + 1
        return self.limit

    @property
    def own(self) -> Reach:
        """What the heads see that `heads` does not name."""
        return replace(self, heads=()) if self.heads else self

    @property
    def parts(self) -> tuple[Reach, ...]:
        """The layer's own reach and those of its named heads, each once."""
        return tuple(dict.fromkeys((self.own, *(reach for _, reach in self.heads))))

    @property
    def unlimited(self) -> bool:
        """Whether some head sees the whole text, so that the state grows with it."""
        return any(part.kind == "full" for part in self.parts)

    def of(self, head: int) -> Reach:
        """What one KV head sees."""
        return dict(self.heads).get(head, self.own)

    def groups(self, kv_heads: int) -> dict[Reach, Heads]:
        """Each reach and the KV heads that have it, of `kv_heads` in all; the group of head 0 first."""
        found: dict[Reach, list[int]] = {}
        for head in range(kv_heads):
            found.setdefault(self.of(head), []).append(head)
        return {reach: tuple(heads) for reach, heads in found.items()}

    def map(self, function: Callable[[Reach], Reach]) -> Reach:
        """The reach with `function` applied to the layer's own and to each head's."""
        return replace(function(self.own), heads=tuple((head, function(reach)) for head, reach in self.heads))

    def text(self) -> str:
        """One short phrase for tables, such as `window 128 + 4 sinks; heads 0, 2 full`."""
        size = self.window or self.segment
        extra = "".join(f" + {n} {what}" for n, what in ((self.sinks, "sinks"), (self.meta, "meta")) if n)
        places = ", no positions" if self.positions == "none" else ""
        own = f"{self.kind} {size}{extra}{places}" if size else self.kind + places
        named = {part: [str(head) for head, reach in self.heads if reach == part] for part in self.parts}
        others = [f"head{'s' if len(h) > 1 else ''} {', '.join(h)} {part.text()}" for part, h in named.items() if h]
        return "; ".join([own, *others])


def commonest(sizes: Iterable[int | None]) -> int | None:
    """The size named most often; None where none is named."""
    found = [size for size in sizes if size]
    return max(set(found), key=found.count) if found else None


def _named_heads(entries: Any, where: str) -> dict[int, Reach]:
    """The reach of each head of `{0: full, "1-2": {kind: window, window: 64}}`."""
    named: dict[int, Reach] = {}
    for key, entry in mapping(entries, where).items():
        numbers = number_range(str(key))
        if not numbers or numbers[-1] >= MOST_HEADS:
            raise UserError(f"{where} names {str(key)!r}; write a KV head such as 0 or a range such as 0-2")
        reach = Reach.from_dict({"kind": entry} if isinstance(entry, str) else entry, f"{where}.{key}")
        for head in numbers:
            if head in named:
                raise UserError(f"{where}.{key} names head {head} again; name each head once")
            named[head] = reach
    return named
