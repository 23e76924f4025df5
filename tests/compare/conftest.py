"""A folder with a tiny base and its texts, and one whole comparison in it."""

import json

import pytest

from anchorlm.cli import __main__ as program
from small import char_tokenizer, tiny_llama
from tiny_table import TEXT

METHODS = "lolcats,anchor"
SMALL = [
    "--tokens", "400", "--set", "data.length=64", "--layers", "1,2", "--window", "16", "--context", "900",
    "--limit", "3", "--lengths", "200", "--needles", "2", "--recall", "2", "--speed", "64",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    tiny_llama(layers=4, max_positions=2048).save_pretrained(home / "base")
    char_tokenizer().save_pretrained(home / "base")
    for name in ("train", "test"):
        (home / f"{name}.txt").write_text("".join(TEXT.format(f"{name} {n}") for n in range(60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORLM_CACHE", str(home / "cache"))
        yield home


def arguments(home, out, *more, methods=METHODS):
    texts = ["--train", str(home / "train.txt"), "--data", str(home / "test.txt")]
    return ["compare", str(home / "base"), "--methods", methods, *texts, *SMALL, "-o", str(out), *more]


@pytest.fixture(scope="module")
def done(home, tmp_path_factory):
    """(folder, result) of one whole run."""
    out = tmp_path_factory.mktemp("out")
    assert program.run(arguments(home, out)) == 0
    return out, json.loads((out / "comparison.json").read_text())
