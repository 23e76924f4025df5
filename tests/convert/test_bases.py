"""A BASE in every form it may have, and every way in which it may be wrong."""

import json
import struct

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from anchorlm.convert import bases, gguf, hub
from anchorlm.convert.bases import load_base, load_base_config, load_tokenizer
from anchorlm.convert.fingerprint import element_count, fingerprint
from anchorlm.core import UserError
from small import char_tokenizer

SIZES = dict(
    vocab_size=258, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128,
)  # fmt: skip
FAMILIES = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def write_base(folder, family="llama", tokenizer=True, **fields):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](**{**SIZES, **fields}))
    model.save_pretrained(folder)
    if tokenizer:
        char_tokenizer().save_pretrained(folder)
    return model


@pytest.fixture
def folder(tmp_path):
    write_base(tmp_path / "base")
    return tmp_path / "base"


def edit_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_gives_the_saved_weights(tmp_path, family, tied):
    saved = write_base(tmp_path / "b", family, tie_word_embeddings=tied)
    base = load_base(tmp_path / "b", dtype="float32")
    found = base.model.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in saved.state_dict().items())
    assert base.name == str(tmp_path / "b") and not base.model.training


def test_a_tokenizer_without_a_limit_gets_the_models(folder):
    assert load_base(folder).tokenizer.model_max_length == 128
    assert load_tokenizer(folder).model_max_length == 128


def test_a_base_without_a_tokenizer(tmp_path):
    write_base(tmp_path / "b", tokenizer=False)
    assert load_base(tmp_path / "b").tokenizer is None
    with pytest.raises(UserError, match="has no tokenizer"):
        load_tokenizer(tmp_path / "b")


def test_the_dtype_is_the_one_asked_for(folder):
    assert load_base(folder, dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(UserError, match="did you mean 'float32'"):
        load_base(folder, dtype="float23")


def test_a_config_needs_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert load_base_config(folder).num_hidden_layers == 2
    assert load_base_config("smollm2-135m").num_hidden_layers == 30


def test_a_fingerprint_ignores_sharding_and_place_but_not_weights(tmp_path):
    model = write_base(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "many")
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(tmp_path / "other")
    assert fingerprint(tmp_path / "one") != fingerprint(tmp_path / "other")


def test_another_form_of_the_weights_beside_them_changes_nothing(folder):
    before = fingerprint(folder)
    (folder / "consolidated.safetensors").write_bytes(b"other")
    assert fingerprint(folder) == before
    assert load_base(folder, dtype="float32").fingerprint == before


def test_a_missing_shard_and_a_damaged_index_are_named(tmp_path):
    model = write_base(tmp_path / "b")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    last = sorted((tmp_path / "many").glob("*.safetensors"))[-1]
    assert element_count(tmp_path / "many") == element_count(tmp_path / "b")
    last.unlink()
    with pytest.raises(UserError, match=f"lack {last.name}"):
        load_base(tmp_path / "many")
    (tmp_path / "many" / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(UserError, match=r"index\.json is damaged"):
        load_base(tmp_path / "many")


def test_quantised_weights_are_refused(folder):
    edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UserError, match="quantised weights .*gptq"):
        load_base(folder)


def test_too_little_memory_is_named_before_loading(folder, monkeypatch):
    from anchorlm.convert import cached

    monkeypatch.setattr(cached.psutil, "virtual_memory", lambda: type("M", (), {"available": 1000}))
    with pytest.raises(UserError, match="in float32 needs 0.0 GB of memory"):
        load_base(folder, dtype="float32")


@pytest.mark.parametrize(
    "name, message",
    [
        ("smollm2-135", "did you mean 'smollm2-135m'"),
        ("no/such/folder", "no such folder"),
        ("./missing", "no such folder"),
        ("missing.gguf", "no such file"),
        ("", "known by that name"),
    ],
)
def test_an_unknown_name_is_one_line(name, message, monkeypatch):
    monkeypatch.setenv("ANCHORLM_OFFLINE", "1")
    with pytest.raises(UserError, match=message) as caught:
        load_base(name)
    assert "\n" not in str(caught.value)


def test_a_config_far_larger_than_the_weights_is_refused_before_anything_is_allocated(folder):
    (folder / "config.json").write_text('{"model_type": "llama"}')  # the defaults are those of a 7B model
    with pytest.raises(UserError, match="describes 6,738,415,616 weights, the files hold"):
        load_base(folder)


def test_a_plain_file_is_refused(tmp_path):
    path = tmp_path / "weights.bin"
    path.write_bytes(b"x")
    with pytest.raises(UserError, match="is a file"):
        load_base(path)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="no config.json"):
        load_base(tmp_path)


def test_an_unknown_family_is_refused(folder):
    edit_config(folder, model_type="gpt_neox")
    with pytest.raises(UserError, match="'gpt_neox'.*llama, mistral, qwen2, qwen3"):
        load_base(folder)


def test_a_converted_model_is_not_a_base(folder):
    edit_config(folder, model_type="anchorlm")
    with pytest.raises(UserError, match="converted model already"):
        load_base(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "llama", "num_hidden_layers": "three"}'])
def test_a_damaged_config_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config.json is|weights|family"):
        load_base(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 20_000])
def test_damaged_safetensors_are_refused(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="weights cannot be read") as caught:
        load_base(folder)
    assert "\n" not in str(caught.value)


def test_missing_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no .safetensors weights"):
        load_base(folder)


def test_weights_for_another_shape_are_refused(folder):
    edit_config(folder, num_hidden_layers=3)
    with pytest.raises(UserError, match="lack .* tensors, first model.layers.2"):
        load_base(folder)
    edit_config(folder, num_hidden_layers=1)
    with pytest.raises(UserError, match="unknown .* tensors, first model.layers.1"):
        load_base(folder)
    edit_config(folder, num_hidden_layers=2, intermediate_size=24)
    with pytest.raises(UserError, match="weights"):
        load_base(folder)


def test_a_damaged_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer cannot be read"):
        load_base(folder)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "toaster"])
def test_a_device_that_is_not_there_is_refused(folder, device):
    with pytest.raises(UserError, match="device"):
        load_base(folder, device=device)


def test_the_hub_is_not_waited_for_long(monkeypatch):
    monkeypatch.delenv("ANCHORLM_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "PATIENCE", 0.2)

    class Silent:
        def __init__(self, **_):
            pass

        def model_info(self, *_, **__):
            import time

            time.sleep(5)

    monkeypatch.setattr(hub.huggingface_hub, "HfApi", Silent)
    hub._answer.cache_clear()
    with pytest.raises(UserError, match="cannot be reached"):
        load_base("nobody/at-home")
    hub._answer.cache_clear()


@pytest.mark.parametrize("variable", ["ANCHORLM_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_an_environment_without_network_never_asks_the_hub(monkeypatch, variable):
    monkeypatch.setattr(hub, "_answer", lambda *_: pytest.fail("the hub was asked"))
    monkeypatch.setenv(variable, "1")
    with pytest.raises(UserError, match="forbids the network"):
        load_base("nobody/at-home")
    assert not hub.reachable("nobody/at-home")


def test_an_alias_takes_the_hub_where_it_answers_and_the_wheel_otherwise(folder, monkeypatch):
    monkeypatch.delenv("ANCHORLM_OFFLINE", raising=False)
    monkeypatch.setattr(bases, "packaged_file", lambda packaged: packaged.file)
    monkeypatch.setattr(bases.gguf, "as_folder", lambda path: folder)
    monkeypatch.setattr(hub, "cached_snapshot", lambda *_: None)
    monkeypatch.setattr(hub, "snapshot", lambda *_: folder)
    monkeypatch.setattr(hub, "reachable", lambda _: True)
    assert load_base("smollm2-135m").name == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert load_base("smollm2-135m-q4_1").name == "smollm2-135m-q4_1"
    monkeypatch.setattr(hub, "reachable", lambda _: False)
    assert load_base("smollm2-135m").name == "smollm2-135m-q4_1"
    monkeypatch.setattr(hub, "reachable", lambda _: True)
    monkeypatch.setenv("ANCHORLM_OFFLINE", "1")
    assert load_base("smollm2-135m").name == "smollm2-135m-q4_1"


def gguf_header(**values):
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def field(value):
        return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<I", 8) + text(value)

    body = b"".join(text(key) + field(value) for key, value in values.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + body


def test_a_gguf_of_another_architecture_is_refused(tmp_path):
    path = tmp_path / "other.gguf"
    path.write_bytes(gguf_header(**{"general.name": "x", "general.architecture": "mamba"}))
    with pytest.raises(UserError, match="'mamba'; allowed: llama, qwen2, qwen3"):
        load_base(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGML" * 9, gguf_header(**{"general.name": "x"}), None])
def test_a_damaged_gguf_is_refused(tmp_path, content):
    path = tmp_path / "bad.gguf"
    path.write_bytes(gguf_header(**{"general.architecture": "llama"})[:-2] if content is None else content)
    with pytest.raises(UserError, match="not a whole GGUF"):
        load_base(path)
    with pytest.raises(UserError, match="not a whole GGUF"):
        load_base_config(path)


def test_a_gguf_that_ends_after_its_header_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("ANCHORLM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "short.gguf"
    sizes = {"block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 48}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 64}
    fields = {f"llama.{key}": value for key, value in (sizes | heads).items()}
    path.write_bytes(gguf_header(**{"general.architecture": "llama"}, **fields))
    with pytest.raises(UserError, match="damaged"):
        load_base(path)
    assert not [p for p in (tmp_path / "cache" / "gguf").iterdir() if p.is_dir()]


def test_header_values_are_found_among_arrays_and_numbers(tmp_path):
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    words = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    number = text("llama.block_count") + struct.pack("<II", 4, 30)
    last = text("tokenizer.ggml.pre") + struct.pack("<I", 8) + text("smollm")
    (tmp_path / "f.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + words + number + last)
    assert gguf._metadata(tmp_path / "f.gguf", {"tokenizer.ggml.pre"}) == {"tokenizer.ggml.pre": "smollm"}
    assert gguf._metadata(tmp_path / "f.gguf", {"llama.block_count"}) == {"llama.block_count": 30}
