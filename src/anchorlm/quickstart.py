"""The main job on a packaged real model: the plan, what it keeps, a book at constant cost, and text; in minutes."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .convert import files, summary, views
from .convert.attach import convert
from .convert.bases import load_base
from .convert.load import load
from .convert.save import save
from .core import atomic_file, seed_all
from .data.sources import packaged_text
from .environment import environment
from .eval import lines, run_eval, table
from .eval.kept import check_ours, check_run_folder
from .generate.ask import ReadText, read_text
from .generate.questions import ANSWER_TOKENS, QUESTIONS, answers
from .generate.text import Options
from .generate.trace import Point, read
from .plan import ModelShape
from .presets import build
from .report import write_report
from .report.html import check_page
from .shipped import located, shipped

BASE = "smollm2-135m-q4_1"
ADAPTER = "smollm2-135m-kept-heads"
OTHER = ("smollm2-135m-hybrid", "full attention in 4 layers")  # beside it, with the name it has in tables
NAME = "hybrid"  # of the adapter's model, in tables and plots
WINDOW = 128
LEGEND = """  (hybrid: the adapter; teacher: the base as it was, without LoRA; window: the hybrid without its memory;
  cross-window: perplexity of tokens whose word pair was last seen beyond the window; bits/byte: of the text)"""
KINDS = {name: name for name in ("plan", "text", "questions", "limits", "commands", "reading")}  # of each file
KINDS |= {"ppl": "eval", "reading-teacher": "reading"}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """Sizes in tokens, chosen to end within three minutes on two cores."""

    out: str = "runs/quickstart"
    base: str = BASE
    adapter: str | None = None
    documents: int = 2
    context: int = 2048
    every: int = 4096
    book_tokens: int | None = None
    teacher_tokens: int = 6144
    new_tokens: int = 60
    seed: int = 0


def packaged_adapter(name: str = ADAPTER) -> Path | None:
    """A trained adapter that ships with the package, or None in a copy without it."""
    return Path(located(name)) if name in shipped() else None


def nearby(path: Path) -> str:
    """The path from the current folder if it lies below, else as it is."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def quickstart(settings: Settings, say: Say = print) -> dict[str, Any]:
    """Run every step, print it as the command that does the same, and write JSON files and report.html to `out`."""
    check_run_folder(settings.out)
    for name, kind in KINDS.items():
        check_ours(Path(settings.out) / f"{name}.json", kind)
    check_page(Path(settings.out) / "report.html")
    return _Run(settings, say).all()


class _Run:
    """The steps share one loaded model, so that its weights are read once."""

    def __init__(self, settings: Settings, say: Say):
        self.settings, self.say = settings, say
        self.out = Path(settings.out)
        self.commands: list[str] = []
        self.seconds: dict[str, float] = {}
        seed_all(settings.seed)

    def all(self) -> dict[str, Any]:
        with self._opened() as (folder, model, tokenizer, trained):
            self.folder, self.model, self.tokenizer, self.trained = folder, model, tokenizer, trained
            plan, quality = self.plan(), self.quality()
            points = self.book()
            grown = self.teacher_reads()
            self.limits(quality, points, grown)
        return self.finish(plan, quality, points, grown)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Path, Any, Any, bool]]:
        """The packaged adapter; in a copy without one, a freshly converted folder that is gone afterwards."""
        adapter = Path(self.settings.adapter) if self.settings.adapter else packaged_adapter()
        with tempfile.TemporaryDirectory() as place:
            self.say(f"loading {self.settings.base} (the first time, its weights are fetched and unpacked)")
            with self._timed("loading"):
                folder = adapter or self._untrained(Path(place) / "untrained")
                model, tokenizer = load(folder)
            yield folder, model, tokenizer, bool(files.read_json(folder / files.RUN).get("training"))

    def _untrained(self, folder: Path) -> Path:
        self.say("no trained adapter is packaged here: memory is untrained and silent")
        self.command("convert", self.settings.base, "--plan", "anchor", "--set", f"window={WINDOW}", "-o", folder)
        base = load_base(self.settings.base)
        plan = build("anchor", ModelShape.from_config(base.model.config), window=WINDOW)
        return save(convert(base, plan), folder, base.tokenizer)

    def plan(self) -> dict[str, Any]:
        self.command("info", self.folder)
        config, stored = summary.source_config(str(self.folder))
        dtype = next(self.model.backbone.parameters()).dtype
        found = summary.summary(config, self.model.plan, summary.stored_lora(self.folder), dtype)
        for row in found["layers"]:
            filled = {key: value or "-" for key, value in row.items()}
            self.say("  layers {layers:<6} {attention:<22} writes {writes:<6} reads {reads}".format(**filled))
        self.say(f"  state of one sequence, keys and values in {found['dtype']}, the rest in float32:")
        for part, size in found["state_bytes"].items():
            self.say(f"  {part:<26} {size:>12,} bytes" if size else f"  {part:<26} {'-':>12}")
        self.write("plan", {"kind": "plan", "source": stored.get("base"), **found})
        return found

    def quality(self) -> dict[str, Any]:
        """Perplexity beside every control that tells what the memory alone adds, and beside the packaged hybrid."""
        s, text = self.settings, packaged_text("held_out.txt")
        other = packaged_adapter(OTHER[0]) if s.adapter is None else None
        beside = ("--vs", other) if other else ()
        with self._timed("perplexity"):
            self.command(
                "eval", self.folder, "--data", text, "--context", s.context, "--limit", s.documents,
                "--vs", "teacher", "--vs", "window", *beside,
            )  # fmt: skip
            models = views.controls(self.model) | ({OTHER[1]: load(other)[0]} if other else {})
            result = run_eval(
                self.model, self.tokenizer, "ppl", text, s.context, name=NAME, versus=models, limit=s.documents,
                seed=s.seed, progress=lambda what, done, total: self.say(f"  {what}: {done} of {total} done"),
            )["ppl"]  # fmt: skip
        for line in lines(*table(result)):
            self.say("  " + line)
        self.say(LEGEND)
        self.write("ppl", result)
        return result

    def book(self) -> list[Point]:
        """The whole packaged book at constant state, what the model writes next, and what it answers."""
        s, text = self.settings, packaged_text("book.txt")
        limit = () if s.book_tokens is None else ("--limit", s.book_tokens)
        options = Options(s.new_tokens, 0.8, 0.9, s.seed, raw=True, limit=s.book_tokens, every=s.every)
        with self._timed("book"):
            self.command(
                "generate", self.folder, "--file", text, "--raw", "--figures-every", s.every, *limit,
                "--max-new-tokens", s.new_tokens, "--temperature", 0.8, "--top-p", 0.9, "--seed", s.seed,
            )  # fmt: skip
            book = text.read_text(encoding="utf-8")
            done = read_text(self.model, self.tokenizer, book, options, on_point=self.point)
            result = done.ask("")
        self.say("  it goes on: " + " ".join(result.text.split()))
        self.reading("reading", NAME, result.points)
        last = book.strip()[-300:] if s.book_tokens is None else ""
        self.write(
            "text", {"kind": "text", "title": "What it writes after the book", "prompt": last, "text": result.text}
        )
        with self._timed("questions"):
            self.questions(done, text, limit)
        return result.points

    def questions(self, done: ReadText, text: Path, limit: tuple[Any, ...]) -> None:
        """Facts of the book's beginning, asked after its end and, as a control, right behind the sentence itself."""
        rows = []
        for asked in QUESTIONS:
            tail = ("--max-new-tokens", ANSWER_TOKENS)
            self.command(
                "generate", self.folder, "--file", text, "--raw", *limit, "--prompt", asked.prompt, *tail
            )  # fmt: skip
            rows.append(answers(done, asked, Options(ANSWER_TOKENS)))
            for where in ("after the book", "beside the sentence"):
                verdict = "right" if rows[-1]["right"][where] else "not right"
                self.say(f"  {where + ':':<21} {asked.lead} {' '.join(rows[-1][where].split())}  ({verdict})")
            self.say(f"  {'expected:':<21} {asked.lead} {asked.expected}")
        self.answered = rows
        self.write("questions", {"kind": "questions", "book": text.name, "rows": rows})

    def teacher_reads(self) -> list[Point]:
        s, text = self.settings, packaged_text("book.txt")
        with self._timed("teacher"):
            self.command(
                "generate", s.base, "--file", text, "--raw", "--limit", s.teacher_tokens - 1, "--figures-every",
                s.every // 2, "--max-new-tokens", 1,
            )  # fmt: skip
            ids = self.tokenizer(text.read_text(encoding="utf-8"), verbose=False)["input_ids"][: s.teacher_tokens]
            teacher = views.teacher(self.model)
            _, _, _, points = read(teacher, torch.tensor([ids]), every=s.every // 2, on_point=self.point)
        self.reading("reading-teacher", "teacher", points)
        return points

    def limits(self, quality: dict[str, Any], points: list[Point], grown: list[Point]) -> list[str]:
        """What the adapter cannot do, from this run's figures and from what its own training measured."""
        value = {row["model"]: row["value"] for row in quality["rows"]}
        window = next((name for name in value if name.startswith("window")), None)
        found = [f"Perplexity is {value[NAME] / value['teacher'] - 1:+.0%} against the teacher on this text."]
        if window:
            gain = 1 - value[NAME] / value[window]
            found.append(f"Memory changes perplexity by {-gain:+.1%} against the same model without it.")
        if not self.trained:
            found.append("This adapter is untrained: its memory does nothing yet.")
        found += files.read_json(self.folder / files.RUN).get("limits") or []
        self.say("what it cannot do")
        for line in found:
            self.say("  " + line)
        self.write("limits", {"kind": "limits", "lines": found})
        return found

    def finish(self, plan: Any, quality: Any, points: list[Point], grown: list[Point]) -> dict[str, Any]:
        self.write("commands", {"kind": "commands", "lines": self.commands})
        page = write_report(self.out, self.out / "report.html", "anchorlm quickstart")
        total = sum(self.seconds.values())
        self.say(f"wrote {page}; {total:.0f} s: " + ", ".join(f"{k} {v:.0f}" for k, v in self.seconds.items()))
        return {
            "report": str(page),
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "state_bytes": plan["state_bytes"],
            "perplexity": {row["model"]: row["value"] for row in quality["rows"]},
            "reading": [point.to_dict() for point in points],
            "questions": self.answered,
            "teacher_reading": [point.to_dict() for point in grown],
            "commands": self.commands,
        }

    def command(self, *words: Any) -> None:
        """Say the line that does the same by itself, files named from the folder one stands in."""
        line = shlex.join(["anchorlm", *(nearby(word) if isinstance(word, Path) else str(word) for word in words)])
        self.commands.append(line)
        self.say("")
        self.say("$ " + line)

    def point(self, point: Point) -> None:
        self.say(
            f"  {point.tokens:>7,} tokens read  {point.tokens_per_second:>6,.0f} tokens/s  "
            f"state {point.state_bytes:>12,} bytes  next token {point.decode_ms:>6,.1f} ms"
        )

    def reading(self, name: str, model: str, points: list[Point]) -> None:
        rows = [point.to_dict() for point in points]
        text = f"a book ({packaged_text('book.txt').name})"
        self.write(
            name,
            {"kind": "reading", "model": model, "text": text, "points": rows, "environment": environment(self.model)},
        )

    def write(self, name: str, content: dict[str, Any]) -> None:
        with atomic_file(self.out / f"{name}.json") as file:
            json.dump(content, file, indent=1, default=str)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
