"""Atomic output: all of it or nothing, and as readable as any other file."""

import os

import pytest
import torch
import yaml

from anchorlm.core import UserError, alone, atomic_dir, atomic_file, occupied, pick_dtype, read_yaml, suggest, sweep


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_of_a_folder_get_the_users_usual_mode(tmp_path, mask):
    old = os.umask(mask)
    try:
        with atomic_dir(tmp_path / "out") as folder:
            (folder / "inner").mkdir()
            for name in ("a", "inner/b"):
                (folder / name).touch(mode=0o600)
        modes = {(tmp_path / "out" / name).stat().st_mode & 0o777 for name in ("a", "inner/b")}
    finally:
        os.umask(old)
    assert modes == {0o666 & ~mask}


def test_an_error_leaves_the_old_folder_and_no_rest(tmp_path):
    with atomic_dir(tmp_path / "out") as folder:
        (folder / "a").write_text("old")
    with pytest.raises(RuntimeError), atomic_dir(tmp_path / "out", overwrite=True) as folder:
        (folder / "a").write_text("new")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "old"


def test_a_full_folder_is_kept_unless_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").touch()
    with pytest.raises(UserError, match="not empty"), atomic_dir(tmp_path / "out"):
        pass


def test_an_error_leaves_the_old_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a") as file:
        file.write("new")
        raise RuntimeError
    assert (tmp_path / "a").read_text() == "old"


def test_a_near_name_is_suggested_and_else_all_are_listed():
    assert suggest("anchr", ["anchor", "swa"]) == "did you mean 'anchor'?"
    assert suggest("zzz", ["b", "a"]) == "allowed: a, b"


def test_a_dtype_may_be_named_or_given():
    assert pick_dtype("float16") == pick_dtype(torch.float16) == pick_dtype("torch.float16") == torch.float16
    for wrong, shown in ((torch.int8, "int8"), ("bfloat", "bfloat")):
        with pytest.raises(UserError, match=f"dtype '{shown}' is unknown; "):
            pick_dtype(wrong)


def left_by_a_kill(folder):
    """The folder with what an atomic_file leaves when its process is killed before the file has its name."""
    with atomic_file(folder / "config.yaml") as file:
        file.write("half")
        (name,) = (item.name for item in folder.iterdir())
    (folder / "config.yaml").rename(folder / name)
    return folder


def test_what_a_kill_left_does_not_occupy_a_folder(tmp_path):
    folder = left_by_a_kill(tmp_path / "run")
    assert list(folder.iterdir()) and not occupied(folder) and not occupied(tmp_path / "none")
    with atomic_dir(folder) as temporary:
        (temporary / "model.txt").write_text("whole")
    assert [item.name for item in folder.iterdir()] == ["model.txt"] and occupied(folder)
    for name in (".hidden", "config.yaml", ".config.yaml.abc"):
        other = tmp_path / name / "run"
        other.mkdir(parents=True)
        (other / name).write_text("own")
        assert occupied(other), name


def test_what_a_kill_left_of_a_file_goes_and_nothing_else(tmp_path):
    """Only temporary neighbours of that very file, and none that a running program may still write."""
    left = [".config.yaml.lxuenuru", ".config.yaml.a_b1c2d3"]
    others = ["config.yaml", ".config.yaml", ".config.yaml.settings9", ".config.yaml.UPPERCAS", ".other.yaml.lxuenuru",
              "config.yaml.lxuenuru", ".config.yaml.lxuenur"]  # fmt: skip
    for name in left + others:
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".config.yaml.isnewnow").write_text("half")
    (tmp_path / ".config.yaml.afolder1").mkdir()
    os.utime(tmp_path / ".config.yaml.afolder1", (1, 1))
    sweep(tmp_path / "config.yaml")
    found = {item.name for item in tmp_path.iterdir()}
    assert found == {*others, ".config.yaml.isnewnow", ".config.yaml.afolder1"}
    sweep(tmp_path / "none" / "config.yaml")


def test_a_file_that_is_written_again_takes_with_it_what_kills_left(tmp_path):
    for name in (".a.json.lxuenuru", ".b.json.lxuenuru"):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (1, 1))
    with atomic_file(tmp_path / "a.json") as file:
        file.write("whole")
    assert sorted(item.name for item in tmp_path.iterdir()) == [".b.json.lxuenuru", "a.json"]


def test_one_process_at_a_time_holds_a_folder(tmp_path):
    folder = tmp_path / "new" / "run"
    with alone(folder):
        with pytest.raises(UserError, match=f"output {folder} is being written by another run"), alone(folder):
            pytest.fail("held twice")
        with alone(tmp_path / "new" / "other"):
            pass
        assert folder.is_dir()
    assert [*tmp_path.iterdir()] == [], "it was empty, so nothing stays of it"
    with alone(folder):
        (folder / "a").touch()
    with alone(folder):
        pass
    assert (folder / "a").exists()


@pytest.mark.parametrize("text", ["a: 1\na: 1", "r: [{n: 1, n: 2}]", "{a: {}, 'a': {}}", "? 1\n: x\n1: y"])
def test_a_key_that_stands_twice_is_no_yaml(text):
    with pytest.raises(yaml.YAMLError, match="stands twice"):
        read_yaml(text)


def test_keys_of_other_mappings_may_be_the_same():
    text = "d: &x {e: 1}\nf: &y {<<: *x, e: 2}\ng: {<<: *y, e: 3}\n1: a\n'1': b"
    assert read_yaml(text) == {"d": {"e": 1}, "f": {"e": 2}, "g": {"e": 3}, 1: "a", "1": "b"}
