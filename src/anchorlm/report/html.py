"""One self-contained page from the JSON files of runs: no network, no script, readable when printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, UndefinedError, select_autoescape
from markupsafe import Markup

from anchorlm.core import UserError, atomic_file, check_folder
from anchorlm.report import analysis, mad, placing, plots, reproducing

SECTIONS = (
    *("plan", "eval", "reading", "bench", "text", "questions", "place"),
    *(*analysis.KINDS, "reproduction", "mad", "limits", "commands"),
)
MARK = '<meta name="generator" content="anchorlm">'  # in the head of every page
BROKEN = (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError, UndefinedError)  # of missing parts


def write_report(run_dirs: str | Path | Iterable[str | Path], out_html: str | Path, title: str = "anchorlm") -> Path:
    """Write a page of everything known in the folders' JSON files; returns its path.

    A file's "kind" says what it holds: plan (as `info --json` prints it), eval, bench, reading, text, questions,
    commands, limits, reproduction, and the analyses; files of other kinds are left out. Raises UserError for a missing
    folder, damaged JSON, a file that lacks parts of its kind, nothing known, or an output that is no earlier page.
    """
    check_page(out_html)
    read = list(_results(run_dirs))
    if not read:
        raise UserError(f"report: no result file in {_names(run_dirs)}; run eval, analyze or quickstart with -o first")
    try:
        return write_page(_by_kind(read), out_html, title)
    except BROKEN as error:
        raise _blame(read, error) from error


def write_page(found: Mapping[str, list[dict[str, Any]]], out_html: str | Path, title: str) -> Path:
    """Write the page of results by kind; kinds that are not there are left out."""
    page = render({kind: [] for kind in SECTIONS} | dict(found), title)
    with atomic_file(out_html) as file:
        file.write(page)
    return Path(out_html)


def check_page(path: str | Path) -> None:
    """Raise UserError unless a page can be written there: over nothing, or over an earlier page."""
    page = Path(path)
    if page.is_dir():
        raise UserError(f"page {str(path)!r} is a folder; name a file such as report.html")
    check_folder(page.parent)
    if page.exists() and MARK not in page.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"page {path} was not written by anchorlm; name another, or move it away")


def collect(run_dirs: str | Path | Iterable[str | Path]) -> dict[str, list[dict[str, Any]]]:
    """Contents of the folders' JSON files by kind, in order of file name."""
    return _by_kind(_results(run_dirs))


def _results(run_dirs: str | Path | Iterable[str | Path]) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Path, kind and content of each file of a known kind."""
    for folder in _paths(run_dirs):
        if not folder.is_dir():
            reason = "is a file; name the folder that holds it" if folder.exists() else "does not exist"
            raise UserError(f"report: folder {folder} {reason}")
        for path in sorted(folder.glob("*.json")):
            content = _read(path)
            kind = _kind(content)
            if kind in SECTIONS:
                yield path, kind, content


def _by_kind(read: Iterable[tuple[Path, str, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SECTIONS}
    for _, kind, content in read:
        found[kind].append(content)
    return found


def _blame(read: Sequence[tuple[Path, str, dict[str, Any]]], error: Exception) -> Exception:
    """An error that names the file of which no page can be made; `error` itself when each of them is whole."""
    for path, kind, content in read:
        try:
            render(_by_kind([(path, kind, content)]), "")
        except BROKEN as own:
            reason = f"{type(own).__name__}: {own}"
            return UserError(f"report: {path} lacks parts that a result of kind {kind!r} has ({reason})")
    return error


def _paths(run_dirs: str | Path | Iterable[str | Path]) -> list[Path]:
    return [Path(run_dirs)] if isinstance(run_dirs, str | Path) else [Path(folder) for folder in run_dirs]


def _names(run_dirs: str | Path | Iterable[str | Path]) -> str:
    return ", ".join(map(str, _paths(run_dirs))) or "no folder"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"report: {path} is not readable JSON") from None


def _kind(content: Any) -> str | None:
    if not isinstance(content, dict):
        return None
    kind = content.get("kind") or ("plan" if {"layers", "state_bytes", "plan"} <= set(content) else None)
    return kind if isinstance(kind, str) else None


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("anchorlm.report", "."),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "count": lambda n: f"{n:,}",
        "cell": _cell,
        "bytes": human_bytes,
        "figure": _figure,
        "span": _span,
        "share": _share,
        "percent": mad.percent,
    }
    return environment.get_template("page.html")


def render(found: dict[str, list[dict[str, Any]]], title: str) -> str:
    """The page's HTML."""
    return _template().render(
        title=title,
        plans=found["plan"],
        perplexities=[(r, _draw(plots.perplexity_bars, r)) for r in found["eval"] if r["suite"] == "ppl"],
        needles=[(r, _maps(r)) for r in found["eval"] if r["suite"] == "niah"],
        scores=[(r, _task_maps(r)) for r in found["eval"] if r["suite"] not in ("ppl", "niah")],
        readings=found["reading"],
        reading_figures=_reading_figures(found["reading"]),
        benches=[(r, _bench_figures(r)) for r in found["bench"]],
        texts=found["text"],
        questions=[row for r in found["questions"] for row in r["rows"]],
        placements=[(r, _placing_figures(r)) for r in found["place"]],
        **analysis.sections(found),
        peer_checks=[r["peers"] for r in found["reproduction"]],
        items=[(item, _item_figures(item)) for r in found["reproduction"] for item in r["items"]],
        mads=[(r, _draw(mad.accuracies, r)) for r in found["mad"]],
        limits=[line for r in found["limits"] for line in r["lines"]],
        commands=[line for r in found["commands"] for line in r["lines"]],
        environments=_environments(found),
    )


def _draw(plot: Callable[[Any], str], result: Any) -> Markup:
    return Markup(plot(result))


def _maps(result: dict[str, Any]) -> list[tuple[dict[str, Any], Markup]]:
    return [(row, Markup(plots.needle_map(row))) for row in result["rows"] if row["value"] is not None]


def _task_maps(result: dict[str, Any]) -> list[tuple[dict[str, Any], Markup]]:
    """Maps of the suites whose cells are tasks at lengths."""
    rows = [row for row in result["rows"] if row["value"] is not None and row.get("cells")]
    mapped = [row for row in rows if all({"task", "length"} <= set(cell) for cell in row["cells"])]
    return [(row, Markup(plots.task_map(row))) for row in mapped]


def _reading_figures(runs: list[dict[str, Any]]) -> list[tuple[str, Markup]]:
    captions = {"state": "State while reading", "time": "Time for one more token", "speed": "Reading speed"}
    drawn = [(caption, plots.reading(runs, what)) for what, caption in captions.items() if runs]
    return [(caption, Markup(figure)) for caption, figure in drawn if figure]


def _bench_figures(bench: dict[str, Any]) -> list[tuple[str, Markup]]:
    chosen = [
        ("Bytes of state after reading", plots.state_against_length),
        ("Time for one more token (median, 10 % to 90 %)", plots.decode_against_length),
        ("Reading speed", plots.prefill_against_length),
    ]
    if any(row.get("peak_bytes") for row in bench["rows"]):
        chosen.append(("Peak memory", plots.peak_against_length))
    return [(caption, _draw(plot, bench)) for caption, plot in chosen]


def _placing_figures(result: dict[str, Any]) -> list[tuple[str, Markup]]:
    drawn = [
        ("Rise of the loss when one layer sees only the window, by distance to the earlier use", placing.heat_map),
        ("Bytes beside the windows against loss", placing.curve),
    ]
    return [(caption, _draw(plot, result)) for caption, plot in drawn]


def _item_figures(item: dict[str, Any]) -> list[tuple[str, Markup]]:
    return [(caption, Markup(figure)) for caption, figure in reproducing.drawn(item)]


def _environments(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each distinct environment once, its time left out; one that only says less than another is left out too."""
    seen: dict[str, dict[str, Any]] = {}
    for kind in ("eval", "bench", "reading", "place", "mad", *analysis.KINDS):
        for result in found[kind]:
            facts = {k: v for k, v in (result.get("environment") or {}).items() if k != "time" and v is not None}
            if facts:
                seen[json.dumps(facts, sort_keys=True)] = facts
    return [facts for facts in seen.values() if not any(_says_less(facts, other) for other in seen.values())]


def _says_less(facts: dict[str, Any], other: dict[str, Any]) -> bool:
    return len(facts) < len(other) and all(other.get(name) == value for name, value in facts.items())


def human_bytes(size: float) -> str:
    """12,582,912 -> "12.58 MB" (decimal units)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:.0f} bytes"


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figure(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _span(interval: list[float] | None, digits: int = 2) -> str:
    return "-" if interval is None else f"{interval[0]:,.{digits}f} to {interval[1]:,.{digits}f}"


def _share(estimate: dict[str, Any] | None) -> str:
    """`8.1 % (5.0 to 11.2)` of an estimate with an interval."""
    if estimate is None:
        return "-"
    ends = estimate["interval"]
    return f"{100 * estimate['value']:.1f} %" + (f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})" if ends else "")
