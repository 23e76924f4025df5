"""Files to documents: .txt, .raw, .tokens, .md, .jsonl, .json, .parquet, each also as .gz, and folders of them."""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from anchorlm.core import UserError, suggest

log = logging.getLogger(__name__)

PLAIN = {"", ".txt", ".text", ".md", ".raw", ".tokens"}
RECORDS = {".jsonl", ".json", ".parquet"}
FIELD_PAIRS = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"))


@dataclass(frozen=True)
class Document:
    """One text and where it came from ("book.txt", or "set.jsonl:17" for record 17)."""

    name: str
    text: str


def read_documents(paths: str | Path | Iterable[str | Path]) -> Iterator[Document]:
    """Documents of all `paths` in order; folders are read recursively, sorted by path.

    A plain file is one document, unchanged (a WikiText file stays one stream); each record of a .jsonl, .json or
    .parquet file is one. Raises UserError for a missing, empty, undecodable or unknown file.
    """
    for path in find_files(paths):
        yield from _read_file(path)


def find_files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files behind `paths`. Inside a folder, hidden files and unknown kinds are left out with a logged line."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given or "" in map(str, given):  # as a path it would be the folder one is in
        raise UserError("no data: name at least one text file or folder")
    return [file for path in given for file in _expand(Path(path))]


def _expand(path: Path) -> list[Path]:
    if not path.exists():
        raise UserError(f"data {path} does not exist")
    if path.is_file():
        if (kind := file_kind(path)) not in PLAIN | RECORDS:
            raise UserError(f"data {path} has an unknown kind {kind!r}; {suggest(kind, (PLAIN | RECORDS) - {''})}")
        return [path]
    found = sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path)))
    known = [file for file in found if file_kind(file) in (PLAIN | RECORDS) - {""}]
    for file in sorted(set(found) - set(known)):
        log.warning("data: %s is not a text file, left out", file)
    if not known:
        raise UserError(f"data folder {path} holds no text file ({', '.join(sorted((PLAIN | RECORDS) - {''}))})")
    return known


def packaged_text(name: str) -> Path:
    """A text that ships with the package: `held_out.txt` or `book.txt`."""
    return Path(str(resources.files("anchorlm") / "texts" / name))


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def file_kind(path: Path) -> str:
    """The suffix that says how to read the file: that before .gz when it is compressed."""
    return path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _read_file(path: Path) -> Iterator[Document]:
    if file_kind(path) in PLAIN:
        yield Document(path.name, nonempty(read_text(path), path))
        return
    count = 0
    for where, record in read_records(path):
        text = _record_text(record, f"{path}:{where}")
        if text.strip():
            count += 1
            yield Document(f"{path.name}:{where}", text)
    if not count:
        raise UserError(f"data {path} is empty")


def read_records(path: Path) -> Iterator[tuple[int, object]]:
    """(number from 1, record) of each record of a .jsonl, .json or .parquet file; of a .json object, its list `data`.

    Raises UserError for a damaged file.
    """
    if file_kind(path) not in RECORDS:
        raise UserError(f"data {path} has no records; {suggest(file_kind(path), RECORDS)}")
    yield from {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet}[file_kind(path)](path)


@contextmanager
def in_form(line: str) -> Iterator[None]:
    """Inside the block a record of some layout is taken apart: what it lacks becomes a UserError that begins with
    `line`."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{line} ({type(error).__name__}: {error})") from None


def words(value: object) -> str:
    """The value, if it is text. Raises TypeError, for `in_form`."""
    if not isinstance(value, str):
        raise TypeError(f"{json.dumps(value, default=str)[:40]} is no text")
    return value


def items(value: object) -> list:
    """The value as a list, if it is one. Raises TypeError, for `in_form`."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{json.dumps(value, default=str)[:40]} is no list")
    return list(value)


def read_bytes(path: Path) -> bytes:
    """Content of the file, unpacked when it is .gz."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"data {path} is a damaged .gz file: {error}") from None
    except OSError as error:
        raise UserError(f"data {path} cannot be read: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """Content of a UTF-8 file, lines ended as in Unix. Raises UserError where it is something else."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"data {path} is not UTF-8 text (byte {error.start}); convert it to UTF-8") from None
    if "\0" in text:
        raise UserError(f"data {path} is not text (a zero byte at character {text.index(chr(0))})")
    return text.replace("\r\n", "\n")


def nonempty(text: str, path: Path) -> str:
    """The text of a file, unless it is empty."""
    if not text.strip():
        raise UserError(f"data {path} is empty")
    return text


def _jsonl(path: Path) -> Iterator[tuple[int, object]]:
    # split("\n") and not splitlines(): a JSON string may hold U+2028, which splitlines() takes for a line end
    for number, line in enumerate(nonempty(read_text(path), path).split("\n"), start=1):
        if line.strip():
            yield number, _parse(line, f"{path}:{number}")


def _json(path: Path) -> Iterator[tuple[int, object]]:
    content = _parse(nonempty(read_text(path), path), str(path))
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        content = content["data"]
    if not isinstance(content, list):
        raise UserError(f"data {path} holds a JSON {type(content).__name__}; a list of records is needed")
    yield from enumerate(content, start=1)


def _parse(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"data {where} is not JSON: {error.msg} at column {error.colno}") from None


def _parquet(path: Path) -> Iterator[tuple[int, object]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"data {path} is parquet, which needs pyarrow: pip install pyarrow") from None
    try:
        yield from enumerate(parquet.read_table(path).to_pylist(), start=1)
    except Exception as error:  # pyarrow raises its own family of errors for damaged files
        raise UserError(f"data {path} is a damaged parquet file: {str(error).splitlines()[0]}") from None


def _record_text(record: object, where: str) -> str:
    """The text of one record: a string, or the fields text, prompt/response or instruction/input/output."""
    if isinstance(record, str):
        return record
    fields = record if isinstance(record, dict) else {}
    if isinstance(fields.get("text"), str):
        return fields["text"]
    for question, answer in FIELD_PAIRS:
        if isinstance(fields.get(question), str) and isinstance(fields.get(answer), str):
            return _joined(fields[question], fields[answer])
    if isinstance(fields.get("instruction"), str) and isinstance(fields.get("output"), str):
        asked = "\n\n".join(filter(None, [fields["instruction"], fields.get("input")]))
        return _joined(asked, fields["output"])
    has = ", ".join(sorted(map(str, fields))) or type(record).__name__
    raise UserError(f"data {where} has no field 'text', 'prompt'/'response' or 'instruction'/'output' (it has: {has})")


def _joined(asked: str, answer: str) -> str:
    return asked + ("" if asked.endswith(("\n", " ")) else "\n\n") + answer
