import json
import subprocess
import sys
import textwrap

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from anchorlm.convert import adapters, files
from anchorlm.convert.attach import convert
from anchorlm.convert.load import load
from anchorlm.convert.save import save
from anchorlm.core import UserError
from anchorlm.plan import ModelShape, Plan
from anchorlm.presets import build
from hybrids import PLANS, logits, make, shake_lora, tokens
from small import tiny_llama


@pytest.fixture
def saved(base_folder, tmp_path):
    """(model with LoRA, its adapter folder)"""
    model = make(base_folder, "anchor")
    adapters.add_lora(model, 2, 4)
    shake_lora(model)
    return model, save(model, tmp_path / "adapter", load(str(base_folder))[1], {"command": "anchorlm test"})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("lora", [False, True])
def test_a_saved_adapter_gives_the_same_logits(base_folder, tmp_path, plan, lora):
    model = make(base_folder, plan)
    if lora:
        adapters.add_lora(model, 2, 4)
        shake_lora(model)
    save(model, tmp_path / "a")
    loaded, _ = load(tmp_path / "a", "float32")
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.plan == model.plan
    assert dict(loaded.named_parameters()).keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize("plan", PLANS)
def test_a_model_without_a_named_base_is_saved_whole(tmp_path, plan):
    bare = tiny_llama(layers=4)
    values = {"window": 8} | ({} if plan == "swa" else {"chunk": 8})
    model = convert(bare, build(plan, ModelShape.from_config(bare.config), **values)).eval()
    save(model, tmp_path / "whole")
    loaded, tokenizer = load(tmp_path / "whole", "float32")
    assert torch.equal(logits(loaded), logits(model))
    assert tokenizer is None


def test_every_rule_and_map_comes_back(base_folder, tmp_path):
    for number, (rule, kind) in enumerate([("linear", "dense"), ("delta", "planes"), ("swiglu-ttt", "expm")]):
        values = {"rule": rule, "map": {"kind": kind, "planes": 2}, "heads": "kv", "mix": "convex", "conv": 3}
        model = make(base_folder, "anchor", **values)
        save(model, tmp_path / str(number))
        assert torch.equal(logits(load(tmp_path / str(number), "float32")[0]), logits(model))


def test_the_folder_is_small_and_complete(saved):
    _, folder = saved
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"config.json", "memory.safetensors", "README.md", "run.json", "tokenizer.json"} <= names
    assert {"lora/adapter_config.json", "lora/adapter_model.safetensors"} <= names
    assert "model.safetensors" not in names
    assert len({(folder / name).stat().st_mode for name in names}) == 1, "all files may be read by the same people"
    run = json.loads((folder / "run.json").read_text())
    assert run["command"] == "anchorlm test" and run["versions"]["torch"] == torch.__version__
    assert Plan.from_dict(json.loads((folder / "config.json").read_text())["plan"], 4).slots


def test_the_card_shows_base_plan_bytes_and_command(saved):
    text = (saved[1] / "README.md").read_text()
    assert "anchorlm test" in text and "swiglu-ttt" in text and "fast weights" in text
    assert "transformers" in text


def test_the_card_counts_heads_that_keep_full_attention(base_folder, tmp_path):
    window = {"kind": "window", "window": 8, "sinks": 2}
    plan = {"attention": window, "layers": {"1": {"kind": "full"}, "2-3": {"heads": {1: "full"}}}}
    text = (save(make(base_folder, plan), tmp_path / "m") / "README.md").read_text()
    assert "3 of 4 layers with limited attention (2 of their KV heads keep full attention), 0 memory slots." in text
    assert "| 2-3 | window 8 + 2 sinks; head 1 full |" in text


def test_peft_reads_the_lora_folder(saved, base_folder):
    model, folder = saved
    plain = LlamaForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    peft = PeftModel.from_pretrained(plain, folder / "lora").eval()
    with torch.no_grad():
        theirs = peft(tokens()).logits
        ours = model(tokens(), plan=model.plan.teacher()).logits
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-4)


def test_a_base_name_gives_the_teacher(base_folder):
    model, tokenizer = load(str(base_folder), "float32")
    plain = LlamaForCausalLM.from_pretrained(base_folder, dtype=torch.float32).eval()
    assert not model.plan.slots and {reach.kind for reach in model.plan.layers} == {"full"}
    torch.testing.assert_close(logits(model), logits(plain), atol=1e-5, rtol=1e-4)
    assert tokenizer("ab")["input_ids"]


def test_auto_classes_read_both_forms(saved, base_folder, tmp_path):
    model, folder = saved
    auto = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(logits(auto), logits(model))
    model.config.base = None
    save(adapters.merge_lora(model), tmp_path / "whole")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    assert torch.equal(logits(whole), logits(model))


def test_from_pretrained_refuses_an_option_it_would_ignore(saved):
    with pytest.raises(TypeError, match="quantization_config"):
        AutoModelForCausalLM.from_pretrained(saved[1], quantization_config={"load_in_4bit": True})


def _damage(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_a_damaged_file_is_one_line(saved):
    _, folder = saved
    for name in ("memory.safetensors", "lora/adapter_model.safetensors", "config.json"):
        keep = (folder / name).read_bytes()
        _damage(folder / name)
        with pytest.raises(UserError, match=name.rpartition("/")[2]) as error:
            load(folder)
        assert "\n" not in str(error.value) and "damaged" in str(error.value)
        (folder / name).write_bytes(keep)


def test_missing_unexpected_and_misshapen_tensors_are_named(saved):
    _, folder = saved
    path = folder / files.MEMORY
    tensors = load_file(path)
    first = sorted(tensors)[0]
    cases = [
        ({name: value for name, value in tensors.items() if name != first}, f"lacks {first}"),
        (tensors | {"stray": torch.zeros(1)}, "unexpected stray"),
        (tensors | {first: torch.zeros(3, 1, 4, 1)}, f"{first} has shape"),
        (tensors | {first: torch.full_like(tensors[first], float("nan"))}, "not finite"),
    ]
    for changed, line in cases:
        save_file(changed, path)
        with pytest.raises(UserError, match=line):
            load(folder)


def test_a_checkpoint_of_another_plan_is_refused(saved, base_folder, tmp_path):
    _, folder = saved
    save(make(base_folder, "anchor-f"), tmp_path / "other")
    (folder / files.MEMORY).write_bytes((tmp_path / "other" / files.MEMORY).read_bytes())
    with pytest.raises(UserError, match="does not fit the plan"):
        load(folder)


def test_other_base_weights_are_refused_unless_accepted(saved, tmp_path):
    _, folder = saved
    tiny_llama(layers=4, seed=5).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="other weights"):
        load(folder, base=str(tmp_path / "other"))
    load(folder, base=str(tmp_path / "other"), any_base=True)
    tiny_llama(layers=2).save_pretrained(tmp_path / "shallow")
    with pytest.raises(UserError, match="layers 4"):
        load(folder, base=str(tmp_path / "shallow"), any_base=True)


def test_a_base_that_moved_is_one_line(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"base": "/nowhere/at/all"}))
    with pytest.raises(UserError, match="the base of .*nowhere"):
        load(folder)


def test_a_plan_for_another_depth_names_both(base_folder):
    plan = build("anchor", ModelShape.from_config(tiny_llama(layers=2).config), window=8, chunk=8)
    with pytest.raises(UserError, match="2 layers.*has 4"):
        convert(tiny_llama(layers=4), plan)


def test_weights_that_are_not_finite_are_named():
    model = tiny_llama(layers=2)
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = float("inf")
    with pytest.raises(UserError, match="layers.1.mlp.up_proj.weight"):
        convert(model, {"attention": {"kind": "full"}})


def test_an_occupied_folder_is_kept(saved, base_folder):
    model, folder = saved
    before = (folder / "README.md").stat().st_mtime_ns
    with pytest.raises(UserError, match="not empty"):
        save(model, folder)
    assert (folder / "README.md").stat().st_mtime_ns == before
    save(model, folder, overwrite=True)
    assert not list(folder.parent.glob(".*"))


def test_a_failure_while_writing_leaves_nothing(hybrid, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("anchorlm.convert.save.write_card", full)
    with pytest.raises(OSError, match="No space"):
        save(hybrid, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_kill_while_writing_leaves_no_half_folder(base_folder, tmp_path):
    code = f"""
    import os, signal, anchorlm.convert.save as saving
    from anchorlm.convert.load import load
    model, tokenizer = load({str(base_folder)!r})
    saving.write_card = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    saving.save(model, {str(tmp_path / "x")!r}, tokenizer)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True)
    assert done.returncode == -9
    assert not (tmp_path / "x").exists()


def test_saving_does_not_change_the_model(hybrid, tmp_path):
    before = {name: value.clone() for name, value in hybrid.state_dict().items()}
    save(hybrid, tmp_path / "x")
    after = hybrid.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_a_changed_backbone_is_not_lost_silently(hybrid, tmp_path):
    adapters.add_lora(hybrid, 2, 4)
    with torch.no_grad():
        for parameter in adapters.lora_parameters(hybrid).values():
            parameter.add_(0.1)
    save(hybrid, tmp_path / "fine")
    with torch.no_grad():
        hybrid.backbone.model.layers[1].self_attn.q_proj.base_layer.weight.add_(0.1)
    with pytest.raises(UserError, match=r"layers.1.self_attn.q_proj.weight was changed"):
        save(hybrid, tmp_path / "lost")
    hybrid.config.base = None
    save(adapters.merge_lora(hybrid), tmp_path / "whole")
    assert torch.equal(logits(load(tmp_path / "whole", "float32")[0]), logits(hybrid))


def test_a_merged_model_is_saved_whole(saved, tmp_path):
    model, folder = saved
    merged = adapters.merge_lora(load(folder, "float32")[0])
    save(merged, tmp_path / "again")
    assert torch.equal(logits(load(tmp_path / "again", "float32")[0]), logits(merged))


def test_auto_classes_need_only_the_import_of_the_package(saved):
    code = f"""
    import anchorlm
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained({str(saved[1])!r})
    assert type(model).__name__ == "AnchorForCausalLM" and model.plan.slots
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
