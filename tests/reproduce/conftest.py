"""A tiny base, and a finished run of all items."""

import pytest
import yaml

from anchorlm.reproduce import load_scale, reproduce
from reproduced import SCALE, TEXT, job
from small import char_tokenizer, tiny_llama


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    tiny_llama(layers=4, max_positions=2048).save_pretrained(home / "base")
    char_tokenizer().save_pretrained(home / "base")
    for name in ("train", "test"):
        (home / f"{name}.txt").write_text("".join(TEXT.format(f"{name} {n}") for n in range(40)))
    (home / "tiny.yaml").write_text(yaml.safe_dump(SCALE | {"base": str(home / "base")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORLM_CACHE", str(home / "cache"))
        yield home


@pytest.fixture(scope="session")
def done(home, tmp_path_factory):
    """(folder, result, said lines) of all items."""
    out, said = tmp_path_factory.mktemp("out"), []
    return out, reproduce("all", load_scale(home / "tiny.yaml"), job(home, out), say=said.append), said
