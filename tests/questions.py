"""Two questions of every task in the hub's layout, and the same in the other layouts that can be read."""

import json

RECORDS = {
    "lambada": [
        {"text": "The boats went out at dawn, and by noon the harbour was empty of boats"},
        {"text": "He asked for water. She gave him the cup, and he drank the water"},
    ],
    "piqa": [
        {"goal": "dry a wet coat", "sol1": "hang it near a stove ", "sol2": "fold it into a drawer", "label": 0},
        {"goal": "cut bread", "sol1": "with a wool blanket", "sol2": "with a long knife", "label": 1},
    ],
    "hellaswag": [
        {
            "activity_label": "Rowing",
            "ctx_a": "A man sits in a boat.",
            "ctx_b": "the man",
            "endings": ["takes the oars.", "sings [title] a map.", "paints it.", "is a  boat."],
            "label": "0",
        },
        {
            "activity_label": "Baking",
            "ctx_a": "[header] How to bake [title] Warm the oven.",
            "ctx_b": "",
            "endings": ["Go to sea.", "Mix the [step] flour.", "Sell it.", "Wait a year."],
            "label": "1",
        },
    ],
    "winogrande": [
        {"sentence": "The cup fell off the shelf because _ was loose.", "option1": "the cup", "option2": "the shelf",
         "answer": "2"},
        {"sentence": "Ann thanked Mary because _ had helped.", "option1": "Ann", "option2": "Mary", "answer": "2"},
    ],
    "arc_easy": [
        {"question": "What melts ice?", "choices": {"text": ["heat", "cold", "salted fish"], "label": ["A", "B", "C"]},
         "answerKey": "A"},
        {"question": "Which is a star?", "choices": {"text": ["the moon", "Mars", "the sun", "a comet"],
                                                     "label": ["1", "2", "3", "4"]}, "answerKey": "3"},
    ],
    "openbookqa": [
        {"question_stem": "A plant needs", "choices": {"text": ["light", "music"], "label": ["A", "B"]},
         "answerKey": "A"},
        {"question_stem": "Iron is drawn to a", "choices": {"text": ["leaf", "magnet"], "label": ["A", "B"]},
         "answerKey": "B"},
    ],
}  # fmt: skip
RECORDS["arc_challenge"] = RECORDS["arc_easy"][::-1]
HUB_FILES = {
    "lambada": "lambada/data/lambada_test_en.jsonl",
    "piqa": "piqa/plain_text/validation-00000-of-00001.parquet",
    "hellaswag": "hellaswag/data/validation-00000-of-00001.parquet",
    "winogrande": "winogrande/winogrande_xl/validation-00000-of-00001.parquet",
    "arc_easy": "arc/ARC-Easy/test-00000-of-00001.parquet",
    "arc_challenge": "arc/ARC-Challenge/test-00000-of-00001.parquet",
    "openbookqa": "openbookqa/main/test-00000-of-00001.parquet",
}
SUBJECTS = {"anatomy": 3, "high_school_physics": 2}


def mmlu_records(subject, split, count):
    return [
        {
            "question": f" {split} question {number} of {subject}?",
            "subject": subject,
            "choices": [f"one {number}", "two or more", "three", f"{number} and four"],
            "answer": (number + len(subject)) % 4,
        }
        for number in range(count)
    ]


def write_records(path, records):
    """The records as .jsonl, .json or .parquet, as the name says."""
    import pyarrow
    import pyarrow.parquet as parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_all(folder):
    """Every task as it comes from the hub, MMLU of two subjects with five dev questions each."""
    for name, file in HUB_FILES.items():
        write_records(folder / file, RECORDS[name])
    for split in ("test", "dev"):
        for subject, count in SUBJECTS.items():
            count = 5 if split == "dev" else count
            file = folder / "mmlu" / subject / f"{split}-00000-of-00001.parquet"
            write_records(file, mmlu_records(subject, split, count))
    return folder


def material(suite, folder, limit=None, **own):
    """What the suite asks, as `anchorlm eval` reads it."""
    from anchorlm.eval.options import EvalOptions
    from anchorlm.eval.tasks import QUESTIONS

    options = EvalOptions.of(limit=limit, **{suite: {"data": folder, **own}})
    return QUESTIONS[suite].prepare(options, None, None)


def sets_of(folder, *suites, limit=None):
    return {suite: material(suite, str(folder), limit).items for suite in suites}
