"""Reading files: each kind, folders, and one clear line for each kind of bad input."""

import gzip
import json

import pytest

from anchorlm.core import UserError
from anchorlm.data import read_documents


def texts(*paths):
    return [document.text for document in read_documents(paths)]


def test_plain_files_are_unchanged_but_for_bom_and_crlf(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\n".encode())
    (tmp_path / "wiki.raw").write_text(" \n = Title = \n \n Text . \n")
    assert texts(tmp_path / "a.txt", tmp_path / "wiki.raw") == ["one\ntwo\n", " \n = Title = \n \n Text . \n"]


def test_records(tmp_path):
    lines = [{"text": "plain\u2028one"}, {"prompt": "q", "response": "a"}, {"prompt": "q\n", "response": "a"}]
    lines += [{"instruction": "do", "input": "this", "output": "done"}, {"instruction": "do", "output": "done"}]
    expected = ["plain\u2028one", "q\n\na", "q\na", "do\n\nthis\n\ndone", "do\n\ndone"]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n\n")
    (tmp_path / "b.json").write_text(json.dumps([*lines, "bare"]))
    assert texts(tmp_path / "a.jsonl") == expected
    assert texts(tmp_path / "b.json") == [*expected, "bare"]
    assert next(iter(read_documents(tmp_path / "a.jsonl"))).name == "a.jsonl:1"


def test_folder_is_recursive_sorted_and_names_what_it_leaves_out(tmp_path, caplog):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "sub" / "b.txt").write_text("b")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a"))
    (tmp_path / "c.pdf").write_text("no")
    assert texts(tmp_path) == ["a", "b"]
    assert "c.pdf" in caplog.text


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ["one", "two"]


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="needs pyarrow"):
        texts(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.txt", None, "does not exist"),
        ("a.txt", b"", "is empty"),
        ("a.txt", b"  \n ", "is empty"),
        ("a.txt", b"caf\xe9 au lait", "is not UTF-8 text .byte 3."),
        ("a.txt", b"ab\0cd", "zero byte at character 2"),
        ("a.pdf", b"x", "unknown kind '.pdf'"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"txt": "a"}\n', "a.jsonl:1 has no field 'text'.*it has: txt"),
        ("a.jsonl", b'{"text": ""}\n', "is empty"),
        ("a.json", b'{"text": "a"}', "holds a JSON dict"),
        ("a.txt.gz", b"not gz", "damaged .gz"),
        ("a.txt.gz", gzip.compress(b"x" * 1000, mtime=0)[:-10], "damaged .gz"),
    ],
)
def test_bad_input_is_one_line(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        texts(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_nothing_given_and_a_folder_without_text(tmp_path):
    with pytest.raises(UserError, match="name at least one"):
        texts()
    with pytest.raises(UserError, match="holds no text file"):
        texts(tmp_path)
