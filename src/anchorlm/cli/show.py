"""Printing: tables for people, one JSON object for programs, one live line while something runs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

_results: list[TextIO] = []  # the stdout of the verb that runs


@contextmanager
def apart() -> Iterator[None]:
    """Leave stdout to this module while a verb runs: what any other code prints, such as a rule of the user's own,
    would spoil the results there, and goes to stderr."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def stdout() -> TextIO:
    """Where results go."""
    return _results[-1] if _results else sys.stdout


def emit(values: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    line(json.dumps(values, indent=2, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else str(value)


def line(text: str = "", *, quiet: bool = False) -> None:
    """One line on stdout; with `quiet` (a verb that prints JSON) on stderr."""
    print(text, file=sys.stderr if quiet else stdout(), flush=True)


def note(text: str) -> None:
    """A line about the run itself, on stderr."""
    print(text, file=sys.stderr, flush=True)


class _Notes(logging.Handler):
    """What the library has to say, such as that a download has begun, as lines on the stderr of the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record))


def log_to_stderr() -> None:
    """Show the package's log from level INFO on; only once, and not where a program has set it up itself."""
    log = logging.getLogger("anchorlm")
    if not log.handlers:
        log.addHandler(_Notes())
        log.setLevel(logging.INFO)
        log.propagate = False


def table(rows: Sequence[Mapping[str, Any]], title: str = "", right: Sequence[str] = ()) -> None:
    """Rows with the keys of the first as columns; `right` names columns of figures."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    names = list(rows[0])
    if title:
        line(title)
    shown = Table(box=_box(), header_style="bold")
    for name in names:
        shown.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*[cell(row.get(name)) for name in names])
    Console(file=stdout(), width=None if stdout().isatty() else 160).print(shown)


def _box() -> Any:
    from rich import box

    return box.SIMPLE_HEAD


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def sizes(parts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Bytes by part as rows, the sum last; a size per token is not part of the sum."""
    rows = [{"part": name, "bytes": size} for name, size in parts.items()]
    fixed = sum(size for name, size in parts.items() if "per token" not in name)
    return [*rows, {"part": "total, whatever the length", "bytes": fixed}]


def clock(seconds: float) -> str:
    """`2:05`, or `1:02:05` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(seconds: float) -> str:
    """`40 s`, `12 min`, or `1 h 15 min` from an hour on."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class Progress:
    """`reading: 4,096 of 8,192 tokens, 1,021 tokens/s`

    Rewritten in place on a terminal, a line now and then in a pipe. left: also say how long the rest will take.
    """

    def __init__(self, what: str, unit: str = "tokens", every: float = 5.0, left: bool = False) -> None:
        self.what, self.unit, self.every, self.left = what, unit, every, left
        self.live = sys.stderr.isatty()
        self.started = self.last = time.monotonic()
        self.shown = False

    def named(self, what: str, done: int, total: int) -> None:
        """The same for work whose name changes on the way."""
        if what != self.what:
            self.what, self.started = what, time.monotonic()
        self(done, total)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        text = f"{self.what}: {done:,} of {total:,} {self.unit}"
        if self.unit == "tokens":
            text += f", {done / max(now - self.started, 1e-9):,.0f} tokens/s"
        if self.left and done:
            text += f", {clock((now - self.started) * (total - done) / done)} left"
        if self.live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self.shown = True
        elif now - self.last >= self.every:
            self.last = now
            note(text)

    def close(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self.shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()
