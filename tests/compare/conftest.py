"""A folder with a tiny base and its texts, and one whole comparison in it."""

import json

import pytest

from anchorlm.cli import __main__ as program
from anchorlm.results import speed
from anchorlm.train import loop
from small import char_tokenizer, tiny_llama
from tiny_table import TEXT

SMALL = [
    "--tokens", "400", "--set", "data.length=64", "--layers", "1", "--window", "16", "--context", "700",
    "--limit", "2", "--lengths", "200", "--needles", "1", "--recall", "2", "--speed", "32",
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    tiny_llama(layers=2, max_positions=2048).save_pretrained(home / "base")
    char_tokenizer().save_pretrained(home / "base")
    (home / "texts").mkdir()
    for name in ("train.txt", "test.txt", "texts/a.txt", "texts/b.txt"):
        (home / name).write_text("".join(TEXT.format(f"{name} {n}") for n in range(60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORLM_CACHE", str(home / "cache"))
        patch.setattr(speed, "ROUNDS", 1)
        patch.setattr(speed, "WRITTEN", 1)
        yield home


@pytest.fixture(scope="module")
def command(home):
    """The command line of a small comparison; of options given again the last counts."""

    def of(out, *more):
        texts = ["--train", str(home / "train.txt"), "--data", str(home / "test.txt")]
        return ["compare", str(home / "base"), "--methods", "lolcats,anchor", *texts, *SMALL, "-o", str(out), *more]

    return of


@pytest.fixture(scope="module")
def done(command, tmp_path_factory):
    """(folder, result, the training rows of every run by its name) of one whole comparison."""
    out, seen, real = tmp_path_factory.mktemp("out"), {}, loop._next_views

    def next_views(run, *rest):
        views, cursor = real(run, *rest)
        seen.setdefault(run.out.name, []).extend(view.input_ids.tolist() for view in views)
        return views, cursor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_next_views", next_views)
        assert program.run(command(out)) == 0
    return out, json.loads((out / "comparison.json").read_text()), seen
