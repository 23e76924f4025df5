"""Where a run's figures go: JSON lines always, a progress line for people, TensorBoard, trackio or wandb on request."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from ..core import UserError, atomic_file

PROJECT = "anchorlm"  # under which trackio and wandb keep the runs


class Sink(Protocol):
    """Takes one flat record a step; a new kind of log is one class with these two methods."""

    def write(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """Appends each record as one line and flushes it, so that a killed run keeps all finished steps."""

    def __init__(self, path: Path, last_step: int) -> None:
        _keep_until(path, last_step)
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()

    def write(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _keep_until(path: Path, last_step: int) -> None:
    """Drop the lines after the step a run resumes from; it will write them again."""
    kept = [json.dumps(record) for record in read_metrics(path) if record["step"] <= last_step]
    with atomic_file(path) as file:
        file.write("".join(line + "\n" for line in kept))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file; a last line cut short by a kill is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


class Progress:
    """One live line on a terminal; elsewhere a plain line now and then."""

    def __init__(self, console: Console, total: int, every: int = 10) -> None:
        self.console, self.total, self.every = console, total, every
        self.status = console.status("starting") if console.is_terminal else None
        if self.status:
            self.status.start()

    def write(self, record: dict[str, Any]) -> None:
        text = progress_text(record, self.total)
        if self.status and "eval" not in record:
            self.status.update(text)
        elif "eval" in record or record["step"] % self.every == 0 or record["step"] in (1, self.total):
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.status:
            self.status.stop()


def progress_text(record: dict[str, Any], total: int) -> str:
    """A record as one line for people."""
    head = f"{record['stage']}  step {record['step']}/{total}"
    if "eval" in record:
        return head + "  evaluation" + "".join(f"  {name} {value:.4f}" for name, value in record["eval"].items())
    losses = "".join(f"  {name} {value:.4f}" for name, value in record["losses"].items())
    return f"{head}{losses}  grad {record['grad_norm']:.3g}  {record['tokens_per_s']:.0f} tokens/s"


class Tensorboard:
    """Scalars for TensorBoard, in `path`."""

    def __init__(self, path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(path))

    def write(self, record: dict[str, Any]) -> None:
        for name, value in _scalars(record):
            self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self.writer.close()


class Trackio:
    """Scalars for trackio, in its folder on this machine: never in a Space or on a server, whatever is set."""

    REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")

    def __init__(self, path: Path) -> None:
        with redirect_stdout(sys.stderr), _unset(self.REMOTE):
            self.run = importlib.import_module("trackio").init(
                project=PROJECT, name=path.parent.resolve().name, resume="allow"
            )

    def write(self, record: dict[str, Any]) -> None:
        self.run.log(dict(_scalars(record)), step=record["step"])

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self.run.finish()


class Wandb:
    """Scalars for wandb, offline in `path`: it asks for no login, and `wandb sync` sends them when that is wanted."""

    def __init__(self, path: Path) -> None:
        with redirect_stdout(sys.stderr):
            path.mkdir(parents=True, exist_ok=True)
            options = {"project": PROJECT, "name": path.parent.resolve().name, "dir": str(path), "mode": "offline"}
            self.run = importlib.import_module("wandb").init(**options)

    def write(self, record: dict[str, Any]) -> None:
        self.run.log(dict(_scalars(record)), step=record["step"])

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self.run.finish()


@contextmanager
def _unset(names: Sequence[str]) -> Iterator[None]:
    """The environment without these names inside the block."""
    held = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)


def _scalars(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            found += _scalars(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and key not in ("step", "stage_step"):
            found.append((prefix + key, float(value)))
    return found


EXTRA: dict[str, Callable[[Path], Sink]] = {"tensorboard": Tensorboard, "trackio": Trackio, "wandb": Wandb}


def check_sinks(names: Sequence[str]) -> None:
    """Raise UserError for a log whose library is missing, before anything is written."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"log names {name}, which is not installed; install anchorlm[log]")


def open_sinks(run: Path, names: Sequence[str], last_step: int, total: int, console: Console) -> list[Sink]:
    """The sinks of a run in folder `run`; `names` are those asked for beside the two that are always there."""
    extra: list[Sink] = [EXTRA[name](run / name) for name in names]
    return [JsonLines(run / "metrics.jsonl", last_step), Progress(console, total), *extra]
