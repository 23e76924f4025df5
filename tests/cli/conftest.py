import pytest

from anchorlm.cli import __main__ as program
from anchorlm.convert.save import save
from hybrids import base_folder, hybrid, make, tied_folder
from small import char_tokenizer

__all__ = ["base_folder", "hybrid", "tied_folder"]


@pytest.fixture
def call(capsys):
    """Run a command line: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = program.run([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def folder(base_folder, tmp_path):
    return save(make(base_folder, "anchor"), tmp_path / "hybrid", char_tokenizer())
