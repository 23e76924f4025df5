"""Put the page of `anchorlm results ... -o DIR` into the documentation: tools/figures.py DIR

core.md goes into README.md and docs/core.md, any other page into that of its name in docs/, and the records of the
rows of results.md, comparison.md, sharing.md and titan.md into the folder of that name in docs/, one file each.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = "<!-- results:begin (written by tools/figures.py; no figure here is typed by hand) -->"
END = "<!-- results:end -->"
RECORDED = ("results", "comparison", "sharing", "titan")
PAGES = ("core", "reproduce", "mad", *RECORDED)
MARKED = re.compile(r"<!-- results:begin.*?results:end -->", re.DOTALL)


def main(folder: str) -> None:
    """Raises FileNotFoundError when the folder holds no page, ValueError when a target has lost its marks."""
    pages = {name: Path(folder) / f"{name}.md" for name in PAGES}
    found = {name: path.read_text(encoding="utf-8") for name, path in pages.items() if path.is_file()}
    if not found:
        raise FileNotFoundError(f"{folder} holds none of {', '.join(f'{name}.md' for name in PAGES)}")
    if "core" in found:
        (ROOT / "docs" / "core.md").write_text(found["core"], encoding="utf-8")
        put(ROOT / "README.md", found["core"])
    for name in found.keys() - {"core"}:
        put(ROOT / "docs" / f"{name}.md", found[name])
    for name in found.keys() & set(RECORDED):
        keep(Path(folder) / "records", ROOT / "docs" / name)


def put(target: Path, page: str) -> None:
    """Between the marks of `target`, the page without its title."""
    body = page.partition("\n")[2].strip()
    text, count = MARKED.subn(lambda _: f"{START}\n\n{body}\n\n{END}", target.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{target.name} needs the lines results:begin and results:end once")
    target.write_text(text, encoding="utf-8")


def keep(records: Path, target: Path) -> None:
    """Copy the record of each row; a row that the folder lacks keeps the one it has."""
    target.mkdir(exist_ok=True)
    for record in records.glob("*.json"):
        shutil.copyfile(record, target / record.name)


if __name__ == "__main__":
    main(sys.argv[1])
