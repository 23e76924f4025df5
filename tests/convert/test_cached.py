"""The cache: built once, by one process, complete or absent."""

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from anchorlm.convert import cached
from anchorlm.convert.cached import MARKER, build_once, cache_folder, is_complete, read_marker, require_space
from anchorlm.core import UserError


def write_one(folder):
    (folder / "part.bin").write_bytes(b"x" * 100)
    return {"source": "test"}


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"ANCHORLM_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/anchorlm"),
        ({"HOME": "/h"}, "/h/.cache/anchorlm"),
    ],
)
def test_the_folder_follows_the_environment(monkeypatch, variables, expected):
    for name in ("ANCHORLM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_the_second_call_builds_nothing(tmp_path):
    folder = build_once(tmp_path / "deep" / "thing", write_one)
    build_once(folder, lambda _: pytest.fail("built twice"))
    assert read_marker(folder) == {"source": "test", "files": {"part.bin": 100}}


@pytest.mark.parametrize("damage", ["truncated", "missing", "marker", "marker list"])
def test_a_damaged_folder_is_built_again(tmp_path, damage):
    folder = build_once(tmp_path / "thing", write_one)
    if damage == "truncated":
        (folder / "part.bin").write_bytes(b"x" * 99)
    elif damage == "missing":
        (folder / "part.bin").unlink()
    else:
        (folder / MARKER).write_text("{" if damage == "marker" else json.dumps([1]))
    assert not is_complete(folder)
    build_once(folder, write_one)
    assert is_complete(folder)


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(folder):
        write_one(folder)
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        build_once(tmp_path / "thing", fail)
    assert [p.name for p in tmp_path.iterdir()] in ([], [".thing.lock"])


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".thing.abc").mkdir()
    (tmp_path / ".thing.abc" / "half").write_text("x")
    build_once(tmp_path / "thing", write_one)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["thing"]


def test_a_full_disk_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(UserError, match="needs 5 MB .* 1 MB are free"):
        require_space(tmp_path / "not" / "yet", 5_000_000, "it")


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        build_once(tmp_path / "file" / "thing", write_one)


def _build_and_count(folder, log):
    def slow(temporary):
        with open(log, "a") as file:
            file.write("built\n")
        write_one(temporary)
        return {}

    cached.build_once(Path(folder), slow)
    assert is_complete(Path(folder))


def test_two_processes_build_once(tmp_path):
    context = multiprocessing.get_context("fork")
    arguments = (str(tmp_path / "thing"), str(tmp_path / "log"))
    processes = [context.Process(target=_build_and_count, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "log").read_text() == "built\n"
