"""A results table of a tiny base, and what runs it."""

from pathlib import Path

from anchorlm.results import Job

TEXT = "A quiet morning. The boats went out. Nobody spoke of the storm, and {} gulls sat on the wall. "
KEPT = {"slots": {"k1": {"rule": "kept", "write": 1, "chunk": 4, "options": {"tokens": 6, "width": 4}}}}
FAST = {"head": {"write": 0, "read": [0, 1], "chunk": 8}}
TABLE = {
    "title": "Tiny", "window": 8, "sinks": 2, "context": 64, "limit": 4, "lengths": [160], "needles": 2,
    "gap": {"control": "swa-lora", "teacher": "teacher-lora"},
    "training": {
        "set": {"data.length": 32, "stage1.steps": 2, "stage2.steps": 2, "stage2.lr": 5.0e-2, "eval_every": 0},
    },
    "rows": [
        {"name": "teacher", "plan": "full"},
        {"name": "teacher-lora", "plan": "full", "recipe": "anchor", "set": {"stage1.steps": 0}},
        {"name": "swa", "plan": "swa", "note": "window alone"},
        {"name": "swa-lora", "plan": "swa", "recipe": "anchor", "set": {"stage1.steps": 0}},
        {"name": "gates", "plan": KEPT, "recipe": "kept", "set": {"stage2.steps": 0}},
        {"name": "gates-lora", "start": "gates", "recipe": "anchor", "set": {"stage1.steps": 0}},
        {"name": "mixed", "start": "gates", "recipe": "anchor", "plan": {"slots": KEPT["slots"] | FAST}},
        {"name": "wide", "plan": {"same_bytes": "mixed"}},
        {"name": "heads", "needs": "per-head reach"},
    ],
}  # fmt: skip


def job(home, out, **values):
    texts = {name: (str(home / f"{name}.txt"),) for name in ("train", "validation")}
    return Job((str(home / "test.txt"),), Path(out), **{**texts, **values})


def silent(text):
    pass


def by_name(result):
    return {row["name"]: row for row in result["rows"]}
