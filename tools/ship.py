"""Put a trained row of `anchorlm results` into the package: tools/ship.py ROW NAME [START or - [LIMIT...]]

ROW is the row's folder, NAME the adapter's, START the folder of the row that it was trained from: its recipe and losses
go along. Each LIMIT is a sentence about what the adapter cannot do, which the quickstart says. Text and tokenizer stay
behind, and so does every folder name of the machine that trained it.
"""

import json
import re
import shutil
import sys
from pathlib import Path

ADAPTERS = Path(__file__).resolve().parent.parent / "src" / "anchorlm" / "adapters"
WORDS = ("README.md", "config.json", "config.yaml", "metrics.jsonl", "run.json")
WEIGHTS = ("memory.safetensors", "lora/adapter_config.json", "lora/adapter_model.safetensors")
RECORD = ("config.yaml", "metrics.jsonl")
FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.-]+/)+(?=[\w.-]+/[\w.-]+)")  # an absolute path but for its last two names


def main(row: str, name: str, start: str = "-", *limits: str) -> None:
    """Raises FileNotFoundError for a row that lacks one of the files; the old adapter is then left alone."""
    source, target = Path(row), ADAPTERS / name
    texts = {file: FOLDERS.sub("", (source / file).read_text(encoding="utf-8")) for file in WORDS}
    texts["README.md"] = texts["README.md"].replace(f"# {source.name}\n", f"# {name}\n\n{told(source.name)}\n", 1)
    texts["run.json"] = json.dumps(json.loads(texts["run.json"]) | {"limits": limits}, indent=2) + "\n"
    if start != "-":
        texts |= {f"start/{file}": FOLDERS.sub("", (Path(start) / file).read_text(encoding="utf-8")) for file in RECORD}
    weights = {file: (source / file).read_bytes() for file in WEIGHTS}
    shutil.rmtree(target, ignore_errors=True)
    for file, content in (weights | {file: text.encode() for file, text in texts.items()}).items():
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).write_bytes(content)


def told(row: str) -> str:
    return f"Row `{row}` of docs/results.md, where its figures stand beside those of every control."


if __name__ == "__main__":
    main(*sys.argv[1:])
