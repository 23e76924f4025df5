"""Put the table of `anchorlm results core -o DIR` into README.md and docs/core.md: tools/figures.py DIR"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
START = "<!-- results:begin (written by tools/figures.py; no figure here is typed by hand) -->"
END = "<!-- results:end -->"
MARKED = re.compile(r"<!-- results:begin.*?results:end -->", re.DOTALL)


def main(folder: str) -> None:
    """Raises FileNotFoundError when the folder holds no core.md, ValueError when README has lost its marks."""
    page = (Path(folder) / "core.md").read_text(encoding="utf-8")
    (ROOT / "docs" / "core.md").write_text(page, encoding="utf-8")
    body = page.partition("\n")[2].strip()
    readme = ROOT / "README.md"
    text, count = MARKED.subn(lambda _: f"{START}\n\n{body}\n\n{END}", readme.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError("README.md needs the lines results:begin and results:end once")
    readme.write_text(text, encoding="utf-8")


main(sys.argv[1])
