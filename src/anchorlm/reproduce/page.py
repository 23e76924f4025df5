"""The page: every item of the paper, its numbers and ours side by side, and what each claim came to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from ..report.reproducing import drawn
from ..results.core_table import markdown_table
from . import claims
from .items import ITEMS
from .scale import packaged

TITLE = "The paper's tables and figures, measured again"
PARTS = ("tables", "claims", "figures", "notes")


@cache
def printed() -> dict[str, Any]:
    """What the paper prints: its name, and by item caption and rows."""
    return yaml.safe_load(packaged("paper.yaml"))


def result(found: Mapping[str, dict[str, Any]], skipped: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What reproduce.json holds. found: what was kept of each item, empty where nothing was; skipped: why not."""
    paper = printed()
    return {
        "kind": "reproduction",
        "source": paper["source"],
        "items": [_item(name, paper["items"][name], found.get(name, {})) for name in ITEMS],
        "skipped": dict(skipped or {}),
    }


def shown(name: str, found: Mapping[str, Any]) -> str:
    """What the pages show of one kept item, figures included; fails, as Python does, where a part of it is missing."""
    item = _item(name, printed()["items"][name], found)
    return "\n".join([*_section(item), *(svg for _, svg in drawn(item))])


def _item(name: str, printed: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    rows = printed.get("rows", [])
    heads = list(rows[0]) if rows else []
    measured = {part: found[part] if found else [] for part in PARTS}
    facts = {key: found[key] for key in ("key", "texts", "environment") if key in found}
    return {
        "name": name,
        "label": name.replace("table", "Table ").replace("figure", "Figure "),
        "title": ITEMS[name].title,
        "measured": bool(found),
        "paper": {
            "caption": " ".join(printed["caption"].split()),
            "heads": heads,
            "rows": [[_cell(row[head]) for head in heads] for row in rows],
        },
        **measured,
        **facts,
    }


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def markdown(result: dict[str, Any]) -> str:
    """The result as a page."""
    lines = [
        f"# {TITLE}",
        "",
        f"Paper: {result['source']}. Its numbers stand beside ours; captions are paraphrased.",
        "",
    ]
    lines += _summary(result["items"])
    for item in result["items"]:
        lines += _section(item) if item["measured"] else []
    lines += _missing(result["items"], result.get("skipped", {}))
    return "\n".join(lines)


def _summary(items: list[dict[str, Any]]) -> list[str]:
    rows = [[item["label"], row["claim"], row["verdict"]] for item in items for row in item["claims"]]
    return [*markdown_table([["item", "claim", "here"], *rows], texts=3), ""] if rows else []


def _section(item: dict[str, Any]) -> list[str]:
    paper = item["paper"]
    lines = [f"## {item['label']}: {item['title']}", "", f"The paper: {paper['caption']}", ""]
    if paper["rows"]:
        lines += [*markdown_table([paper["heads"], *paper["rows"]]), ""]
    lines += [f"Here{_facts(item)}:", ""]
    for table in item["tables"]:
        lines += [f"{table['title']}:", ""] if table["title"] else []
        lines += [*markdown_table([table["heads"], *table["rows"]], texts=table["texts"]), ""]
    heads = ["claim", "paper", "here", "verdict", "why, as far as known"]
    rows = [[row["claim"], row["paper"], row["ours"], row["verdict"], row["why"] or "-"] for row in item["claims"]]
    return [*lines, *markdown_table([heads, *rows], texts=len(heads)), "", *_paragraphs(item["notes"])]


def _paragraphs(notes: list[str]) -> list[str]:
    return [line for note in notes for line in (note, "")]


def _facts(item: dict[str, Any]) -> str:
    """What it was measured with, unless it follows from shapes."""
    if not item["key"]:
        return ""
    scale, facts, texts = item["key"]["scale"], item["environment"], item["texts"]
    threads = f"{facts['threads']} thread{'' if facts['threads'] == 1 else 's'}"
    parts = [scale["base"], item["key"]["dtype"]] if "base" in scale else []
    if ITEMS[item["name"]].texts:
        parts[1:1] = [
            f"trained on {_names(texts['train'])}",
            f"measured on pieces of {scale['context']:,} tokens of {_names(texts['data'])}",
            f"seed {scale['seed']}",
        ]
    return ", " + ", ".join([*parts, threads, f"{facts['processor']}; torch {facts['packages'].get('torch')}"])


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:2]) or "no text"
    return shown + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _missing(items: list[dict[str, Any]], skipped: Mapping[str, str]) -> list[str]:
    missing = [item for item in items if not item["measured"]]
    why = [f": {skipped[item['name']]}" if item["name"] in skipped else "" for item in missing]
    lines = [f"- {item['label']} ({item['title']}){reason}" for item, reason in zip(missing, why, strict=True)]
    return ["## Not measured", "", *lines, ""] if lines else []


def verdicts(result: dict[str, Any]) -> dict[str, int]:
    """How many claims came to each verdict."""
    found = [row["verdict"] for item in result["items"] for row in item["claims"]]
    return {name: found.count(name) for name in (claims.AGREES, claims.NOT, claims.UNCLEAR, claims.NOT_COMPARABLE)}
