"""The table's result as a page of Markdown: every row of which anything is known, and what was not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .core_table import markdown_table, short
from .measure import SPEED
from .sections import pair_lines, recall_lines, ruler_lines, seed_lines, span, speed_lines
from .summary import FAR
from .table import BASE


def markdown(result: dict[str, Any]) -> str:
    """The result as a page. A row of which nothing is measured stands at the end alone, unless that is all rows."""
    table, every = result["table"], result["rows"]
    rows = [row for row in every if row["texts"] or any(row["needles"].values()) or row.get(SPEED)] or every
    result = result | {"rows": rows}
    parts = [
        f"# {' '.join(table['title'].split())}",
        "",
        f"Base {table['base']}; window {table['window']} with {table['sinks']} sinks wherever a row says nothing else; "
        f"context {table['context']:,} tokens.",
        "",
        *_paragraphs([*table["about"], *_alike(result["alike"])]),
        *_what(table, rows),
    ]
    for text in result["texts"]:
        parts += _quality(result, text)
    for wording in table["wordings"]:
        parts += _needle_lines(result, wording)
    for lines in (pair_lines, recall_lines, ruler_lines, speed_lines, seed_lines):
        parts += lines(result)
    parts += _missing(every)
    parts += _measured_with(table, result["environments"])
    return "\n".join(parts)


def _paragraphs(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in (text, "")]


def _alike(groups: list[dict[str, Any]]) -> list[str]:
    """A line for each set of rows that were to be trained on the same tokens."""
    lines = []
    for group in groups:
        names = ", ".join(f"`{name}`" for name in group["rows"])
        if len(group["rows"]) > 1 and group["same"]:
            rows = ", rows generated in it included," if group["generated"] else ""
            seen = f"the same {group['tokens']:,} tokens of text {group['text']}{rows} in the same order"
            lines.append(f"Trained on {seen}: {names}.")
        elif len(group["rows"]) > 1:
            lines.append(f"Not trained on the same tokens, so not to be compared: {names}.")
    return lines


def _what(table: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    context = table["context"]
    heads = [f"state {short(n)}" for n in (context, FAR)]
    timed = any(row.get("training_tokens_per_s") for row in rows)
    rate = ["training tokens/s"] if timed else []
    lines = [["row", "what it is", *heads, "beyond window", "trained", "tokens seen", *rate]]
    for row in rows:
        states = [_bytes(row.get("state_bytes", {}).get(str(n))) for n in (context, FAR)]
        states.append(_bytes(row.get("beyond_window")))
        figures = [_count(row.get(name)) for name in ("trained_parameters", "tokens")]
        figures += [_count(row.get("training_tokens_per_s"))] if timed else []
        lines.append([row["name"], _note(row), *states, *figures])
    return [
        "State: bytes of one sequence at its fullest, keys and values in bfloat16, fast weights in float32; momentum, "
        f"buffers and sinks included. Beyond window: what of it, at {short(context)}, window and sinks alone lack. "
        "Trained: parameters of memory and LoRA. Tokens seen: in training, generated rows and the training of the row "
        f"it starts from included.{TRAINING_SPEED if timed else ''}",
        "",
        *markdown_table(lines, texts=2),
        "",
    ]


TRAINING_SPEED = (
    " Training tokens/s: over all steps of the row's own training, on the machine and beside the work that it had "
    "then; a difference between rows may be one between these."
)


def _note(row: dict[str, Any]) -> str:
    control = row.get("control")
    parts = [row["note"]] if row["note"] else []
    if control:
        parts.append(f"window {control['window']:,}: the bytes of `{control['of']}`")
    if 0 < row.get("full_share", 0) < 1 and "full attention" not in row["note"]:
        parts.append(f"full attention in {row['full_share']:.0%} of the layers")
    if row["start"] != BASE:
        parts.append(f"starts from `{row['start']}`")
    return "; ".join(parts) or "-"


def _quality(result: dict[str, Any], text: str) -> list[str]:
    table, facts, gap = result["table"], result["texts"][text], result["gap"][text]
    count = max((row["texts"][text]["n"] for row in result["rows"] if text in row["texts"]), default=0)
    heads = ["row", "perplexity", "95 %", "cross-window", "95 %", *(h for g in gap for h in (GAP_HEADS[g], "95 %"))]
    lines = [[row["name"], *_quality_cells(row, text, list(gap))] for row in result["rows"]]
    return [
        f"## Perplexity, {text} text",
        "",
        f"{_names(facts)} (text {facts['hash']}) in pieces of {table['context']:,} tokens ({count} of them); "
        f"cross-window: tokens whose bigram was last seen more than {table['window']} tokens before. Intervals: "
        f"bootstrap over pieces, paired where rows are compared. {_gap_line(table, gap)}",
        "",
        *markdown_table([heads, *lines]),
        "",
    ]


GAP_HEADS = {"cross_window": "gap closed", "all": "of all tokens"}
GAP_TOKENS = {"cross_window": "cross-window token", "all": "token of all"}


def _gap_line(table: dict[str, Any], gap: Mapping[str, Any]) -> str:
    if not gap:
        return ""
    names = f"between `{table['gap']['control']}` and `{table['gap']['teacher']}`"
    if any(whole is None for whole in gap.values()):
        tokens = " and ".join(GAP_TOKENS[group] for group in gap)
        return f"Gap closed: the share of the nats per {tokens} {names}; not both are measured yet."
    if none := [GAP_TOKENS[group] for group, whole in gap.items() if whole["nats"] is None]:
        return f"Gap closed: the share of the nats {names}; no {' and no '.join(none)} is there to state it for."
    parts = [f"the {_nats(whole)} per {GAP_TOKENS[group]}" for group, whole in gap.items()]
    return f"Gap closed: the share of {' and of '.join(parts)} {names}."


def _nats(whole: dict[str, Any]) -> str:
    ends = whole["interval"]
    return f"{whole['nats']:.3f} nats" + ("" if ends is None else f" (95 %: {ends[0]:.3f} to {ends[1]:.3f})")


def _names(facts: dict[str, Any]) -> str:
    shown = [name.rpartition("/")[2] for name in facts["names"][:4]]
    more = facts["documents"] - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _quality_cells(row: dict[str, Any], text: str, groups: list[str]) -> list[str]:
    found, rest = row["texts"].get(text), ["-"] * (3 + 2 * len(groups))
    if found is None or not found["all"]:
        return [found["note"] if found else "not run", *rest]
    cells: list[str] = []
    for group in (found["all"], found["cross_window"]):
        cells += [f"{group['ppl']:.2f}", span(group["interval"], "{:.2f}")] if group else ["-", "-"]
    for gap in (found["gap"][group] for group in groups):
        cells += [f"{gap['value']:.0%}", span(gap["interval"], "{:.0%}")] if gap else ["-", "-"]
    return cells


def _needle_lines(result: dict[str, Any], wording: str) -> list[str]:
    table, rows, count = result["table"], result["rows"], result["needle_texts"]
    lengths = [str(n) for n in table["lengths"]]
    if not lengths:
        return []
    lines = [["row", *(short(n) for n in lengths)]]
    lines += [[row["name"], *(_needle(row["needles"].get(wording, {}).get(n)) for n in lengths)] for row in rows]
    kind = "held-out wordings" if wording == "heldout" else "training wordings"
    return [
        f"## Needles, {kind}",
        "",
        f"{WORDINGS[wording]} A seven-digit number, one a prompt, spread over the depth of {count} pieces of the test "
        "text for each length; right answers of all, and the 95 % interval of their share (Wilson), as if needles in "
        f"one piece were independent.{_in_window(result)} -: beyond the positions of the base, where some layer sees "
        "all.",
        "",
        *markdown_table(lines),
        "",
    ]


def _in_window(result: dict[str, Any]) -> str:
    places = [f"of {short(n)} some {tokens} tokens" for n, tokens in result["needles_in_window"].items()]
    window = f"before the question, within a window of {result['table']['window']}, which finds them without a memory."
    return f" The deepest stand {', '.join(places)} {window}" if places else ""


WORDINGS = {
    "heldout": "Facts and cues worded as no generated row ever is.",
    "train": "Facts and cues worded as in the needle rows that a recipe may mix in; recall rows are worded otherwise.",
}


def _needle(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "not run"
    if cell["hits"] is None:
        return "-"
    return f"{cell['hits']}/{cell['n']} ({span(cell['interval'], '{:.0%}')})"


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"- `{row['name']}`: {reasons(row['missing'])}" for row in rows if row["missing"]]
    return ["## Not run", "", *lines, ""] if lines else []


def reasons(missing: list[str]) -> str:
    return "; ".join(missing) if len(missing) <= 4 else f"{'; '.join(missing[:3])} and {len(missing) - 3} more cells"


def _measured_with(table: dict[str, Any], environments: list[dict[str, Any]]) -> list[str]:
    """One line, or one for each environment when rows were not all measured in the same."""
    lines = [_environment(facts) for facts in environments]
    if len(lines) == 1:
        return [f"Seed {table['seed']}, {lines[0]}.", ""]
    names = [", ".join(f"`{name}`" for name in facts["rows"]) for facts in environments]
    parts = [f"- {line}: {rows}" for line, rows in zip(lines, names, strict=True)]
    return [
        f"Seed {table['seed']}. Not all rows were measured on the same machine or with the same versions:",
        "",
        *parts,
        "",
    ]


def _environment(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    where = facts["processor"] if facts["device"] == "cpu" else facts["accelerator"] or facts["device"]
    return f"{facts['dtype']}, {facts['threads']} threads, {where}; {versions}"


def _bytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f} MB"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
