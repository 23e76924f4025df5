"""The paper measured again on a tiny base, and what runs it."""

from anchorlm.reproduce import claims
from anchorlm.results import Job

TEXT = "A quiet morning. The boats went out. Nobody spoke of the storm, and {} gulls sat on the wall. "


SCALE = {
    "window": 8, "sinks": 2, "context": 64, "limit": 4, "measured": [1], "draws": 2,
    "training": {"set": {"save_every": 1, "data.length": 32, "stage1.steps": 2, "stage1.warmup": 0, "stage2.steps": 2}},
    "tables": {
        "figure3": {"sinks": 0, "training": {"set": {"stage2.steps": 0, "eval_every": 1, "eval_batches": 2}}},
        "slots": {"training": {"set": {"data.accumulate": 1, "stage1.steps": 1, "stage2.steps": 1, "eval_every": 0}}},
    },
    "measures": {
        "similarity": {"context": 64, "documents": 2}, "readmaps": {"context": 64, "documents": 2},
        "knockout": {"context": 64, "documents": 2, "recall": 0, "control": False, "layers": "0,2"},
        "ar": {"lengths": [200], "ar": {"samples": 2, "queries": 4}}, "niah": {"lengths": [200, 300], "limit": 2},
        "ruler": {"lengths": [560], "ruler": {"tasks": ["niah_single_1"], "samples": 1, "answer_tokens": 8}},
        "timing": {"lengths": [16, 32], "rows": 2, "new_tokens": 2},
        "mad": {
            "models": ["transformer", "anchor-f"], "tasks": ["compression"], "seeds": 1,
            "set": {"model.hidden": 8, "model.layers": 2, "model.heads": 2, "model.kv_heads": 2, "training.steps": 1,
                    "training.batch": 2, "test": 2},
        },
    },
}  # fmt: skip


VERDICTS = {claims.AGREES, claims.NOT, claims.UNCLEAR, claims.NOT_COMPARABLE}


def job(home, out, **values):
    given = {"train": (str(home / "train.txt"),), "dtype": "float32"} | values
    return Job((str(home / "test.txt"),), out, **given)


def silent(text):
    pass


def by_name(result):
    return {item["name"]: item for item in result["items"]}


def estimate(value, low, high):
    return {"value": value, "interval": [low, high]}


def pieces(*totals):
    return [{"all": [total, 10], "cross_window": [total / 2, 4]} for total in totals]
