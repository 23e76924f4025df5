"""The page: every item of the paper, its numbers and ours side by side, and what each claim came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from ..report.reproducing import drawn
from ..results.core_table import markdown_table
from . import claims
from .items import ITEMS
from .scale import packaged

TITLE = "The paper's tables and figures, measured again"
KIND = "reproduction"  # of the file that holds every item
PARTS = ("tables", "claims", "figures", "notes")
PEERS = ["item", "claim", "paper", "here (95 %)", "verdict", "cause, as far as known"]
CAUSES = {  # of a verdict whose claim names no cause of its own
    claims.AGREES: "-",
    claims.NOT: "not known",
    claims.UNCLEAR: "the interval holds both directions: the effect is smaller than these few texts can show",
    claims.NOT_COMPARABLE: "one side was not measured",
}


@cache
def printed() -> dict[str, Any]:
    """What the paper prints: its name, and by item caption and rows."""
    return yaml.safe_load(packaged("paper.yaml"))


def result(found: Mapping[str, dict[str, Any]], skipped: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What reproduce.json holds. found: what was kept of each item, empty where nothing was; skipped: why not."""
    paper, reasons = printed(), skipped or {}
    items = [_item(name, paper["items"][name], found.get(name, {})) for name in ITEMS]
    rows = [row for item in items for row in _peers(item, reasons.get(item["name"], ""))]
    return {
        "kind": KIND,
        "source": paper["source"],
        "peers": {"line": _counted(items), "heads": PEERS, "rows": rows},
        "items": items,
    }


def _peers(item: Mapping[str, Any], reason: str) -> list[list[str]]:
    """The claims of an item, each beside what the paper prints; of one that was not measured, a line that says so."""
    if not item["measured"]:
        return [[item["label"], item["title"], "-", "-", "not measured", reason or "not run yet"]]
    return [
        [item["label"], row["claim"], row["paper"], row["ours"], row["verdict"], row["why"] or CAUSES[row["verdict"]]]
        for row in item["claims"]
    ]


def _counted(items: Sequence[Mapping[str, Any]]) -> str:
    found, missing = verdicts({"items": items}), sum(not item["measured"] for item in items)
    many = {claims.AGREES: "agree", claims.NOT: "disagree"}
    parts = ", ".join(
        f"{count} {name if count == 1 else many.get(name, name)}" for name, count in found.items() if count
    )
    sure = sum(row.get("from_shapes", False) for item in items for row in item["claims"])
    parts += f" ({sure} of all claims follow from shapes alone)" if sure else ""
    rest = f"; {missing} of {len(items)} items are not measured" if missing else ""
    return f"Of {sum(found.values())} claims: {parts or 'none'}{rest}."


def shown(name: str, found: Mapping[str, Any]) -> str:
    """What the pages show of one kept item, figures included; fails, as Python does, where a part of it is missing."""
    item = _item(name, printed()["items"][name], found)
    return "\n".join([*_section(item), *map("".join, _peers(item, "")), *(svg for _, svg in drawn(item))])


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
    peers = result["peers"]
    lines += ["## Peer check", "", peers["line"], ""]
    lines += [*markdown_table([peers["heads"], *peers["rows"]], texts=len(peers["heads"])), ""]
    for item in result["items"]:
        lines += _section(item) if item["measured"] else []
    return "\n".join(lines)


def _section(item: dict[str, Any]) -> list[str]:
    paper = item["paper"]
    lines = [f"## {item['label']}: {item['title']}", "", f"The paper: {paper['caption']}", ""]
    if paper["rows"]:
        lines += [*markdown_table([paper["heads"], *paper["rows"]]), ""]
    lines += [f"Here{_facts(item)}:", ""]
    for table in item["tables"]:
        lines += [f"{table['title']}:", ""] if table["title"] else []
        lines += [*markdown_table([table["heads"], *table["rows"]], texts=table["texts"]), ""]
    return [*lines, *_paragraphs(item["notes"])]


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


def verdicts(result: Mapping[str, Any]) -> dict[str, int]:
    """How many claims came to each verdict."""
    found = [row["verdict"] for item in result["items"] for row in item["claims"]]
    return {name: found.count(name) for name in (claims.AGREES, claims.NOT, claims.UNCLEAR, claims.NOT_COMPARABLE)}
