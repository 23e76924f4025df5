"""A folder with a tiny base, its texts and the tiny table."""

import pytest
import yaml

from small import char_tokenizer, tiny_llama
from tiny_table import TABLE, TEXT


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    tiny_llama(layers=2).save_pretrained(home / "base")
    char_tokenizer().save_pretrained(home / "base")
    for name in ("train", "test", "validation"):
        (home / f"{name}.txt").write_text("".join(TEXT.format(f"{name} {n}") for n in range(40)))
    (home / "table.yaml").write_text(yaml.safe_dump(TABLE | {"base": str(home / "base")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORLM_CACHE", str(home / "cache"))
        yield home
