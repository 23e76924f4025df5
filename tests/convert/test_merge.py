import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors import safe_open

from anchorlm.convert import adapters, export
from anchorlm.convert.load import load
from anchorlm.convert.merge import merge
from anchorlm.convert.save import save
from anchorlm.core import UserError
from hybrids import PLANS, logits, make, shake_lora, tokens


def _adapter(base, out, plan="anchor", **values):
    model = make(base, plan, **values)
    adapters.add_lora(model, 2, 4)
    shake_lora(model)
    save(model, out, load(str(base))[1])
    return model


def _plain(folder, code, tmp_path):
    """Run code where anchorlm cannot be imported, offline, with an empty cache of remote code."""
    head = f"""
    import sys
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "anchorlm":
                raise ImportError(name + " is blocked")
    sys.meta_path.insert(0, Block())
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    folder = {str(folder)!r}
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HOME": str(tmp_path / "home")}
    text = textwrap.dedent(head) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env, cwd=tmp_path)


LOAD = """
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
"""


@pytest.mark.parametrize("plan", PLANS)
def test_merged_equals_unmerged_and_loads_strictly(base_folder, tmp_path, plan):
    model = _adapter(base_folder, tmp_path / "a", plan)
    merge(tmp_path / "a", tmp_path / "m", dtype="float32")
    merged, tokenizer = load(tmp_path / "m", "float32")
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-4, rtol=1e-3)
    assert not adapters.has_lora(merged) and merged.plan == model.plan
    assert tokenizer("ab")["input_ids"]
    assert merged.config.base is None, "saving it again must not drop the merged weights"
    assert json.loads((tmp_path / "m" / "run.json").read_text())["base"] == str(base_folder)


KEPT = {"rule": "kept", "options": {"tokens": 5, "width": 6}}
HEADS = {
    "attention": {"kind": "window", "window": 8, "sinks": 2, "heads": {1: "full"}},
    "layers": {"3": {"heads": {0: {"kind": "window", "window": 4}}}},
    "slots": {"k": KEPT | {"write": 1, "chunk": 8}, "s": {"write": 2, "chunk": 4}},
}


@pytest.mark.parametrize(
    "plan,values", [("anchor", {}), ("anchor-f", KEPT), (HEADS, {})], ids=["anchor", "kept", "heads"]
)
def test_a_merged_folder_needs_no_anchorlm_and_no_network(tied_folder, tmp_path, plan, values):
    model = _adapter(tied_folder, tmp_path / "a", plan, **values)
    merge(tmp_path / "a", tmp_path / "m", dtype="float32")
    torch.save(tokens(), tmp_path / "ids.pt")
    code = (
        LOAD
        + """
ids = torch.load("ids.pt")
with torch.no_grad():
    logits = model(ids).logits
    written = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
    beams = model.generate(ids, max_new_tokens=4, num_beams=2, pad_token_id=0)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
assert tokenizer.decode(tokenizer("abc")["input_ids"]) == "abc"
assert type(model).__module__.startswith("transformers_modules.")
assert model.backbone.lm_head.weight is model.backbone.model.embed_tokens.weight
torch.save((logits, written), "out.pt")
"""
    )
    done = _plain(tmp_path / "m", code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trust_remote_code" not in done.stdout + done.stderr, "transformers asked for consent"
    theirs, written = torch.load(tmp_path / "out.pt")
    torch.testing.assert_close(theirs, logits(model), atol=1e-4, rtol=1e-3)
    ours = model.generate(tokens(), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert torch.equal(written, ours)


def test_another_transformers_version_is_refused_with_the_range(base_folder, tmp_path):
    _adapter(base_folder, tmp_path / "a")
    merge(tmp_path / "a", tmp_path / "m")
    entry = tmp_path / "m" / "modeling_anchorlm.py"
    entry.write_text(entry.read_text().replace(export.TRANSFORMERS_RANGE, ">=99"))
    with pytest.raises(ImportError, match="works with transformers >=99; found 5."):
        exec(compile(entry.read_text(), "modeling_anchorlm", "exec"), {})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"transformers_range": ">=99"}))
    with pytest.raises(UserError, match="transformers >=99; found 5."):
        load(tmp_path / "m")


def test_tied_weights_are_written_once_and_come_back_tied(tied_folder, tmp_path):
    model = _adapter(tied_folder, tmp_path / "a")
    merge(tmp_path / "a", tmp_path / "m", dtype="float32")
    with safe_open(tmp_path / "m" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert sum("embed_tokens" in name or "lm_head" in name for name in names) == 1
    merged, _ = load(tmp_path / "m", "float32")
    assert merged.backbone.lm_head.weight is merged.backbone.model.embed_tokens.weight
    torch.testing.assert_close(logits(merged), logits(model), atol=1e-4, rtol=1e-3)


def test_memory_stays_fp32_in_a_bf16_folder(base_folder, tmp_path):
    _adapter(base_folder, tmp_path / "a")
    merge(tmp_path / "a", tmp_path / "m", dtype="bfloat16")
    merged, _ = load(tmp_path / "m", "bfloat16")
    assert {value.dtype for value in merged.memory_parameters().values()} == {torch.float32}
    assert merged.backbone.model.embed_tokens.weight.dtype == torch.bfloat16
    assert logits(merged).isfinite().all()


def test_merge_names_its_mistakes(base_folder, tmp_path):
    _adapter(base_folder, tmp_path / "a")
    with pytest.raises(UserError, match="not an anchorlm folder"):
        merge(base_folder, tmp_path / "m")
    with pytest.raises(UserError, match="input folder"):
        merge(tmp_path / "a", tmp_path / "a", overwrite=True)
    assert not (tmp_path / "m").exists()


def test_every_rewritten_module_compiles_and_imports_only_flat_names():
    modules = export.needed_modules(list(export.CLASSES.values()))
    names = {export.flat_name(module) for module in modules}
    assert len(names) == len(modules)
    for module in modules:
        text = export.flatten(module)
        compile(text, module, "exec")
        for line in text.splitlines():
            words = line.split()
            if words[:1] == ["from"] and words[1].startswith("."):
                assert (words[1][1:] or words[3]) in names, line
            assert not (words[:1] in (["from"], ["import"]) and words[1].split(".")[0] == "anchorlm"), line


def test_flattening_keeps_indentation_aliases_and_long_imports(tmp_path, monkeypatch):
    root = tmp_path / "anchorlm"
    (root / "ops").mkdir(parents=True)
    (root / "ops" / "__init__.py").write_text("")
    (root / "ops" / "a.py").write_text("x = 1\n")
    (root / "b.py").write_text(
        "from .ops import (\n    a,\n    a as second,\n)\n\n\n"
        "def f():\n    from anchorlm.ops.a import x as y\n    return y\n"
    )
    monkeypatch.setattr(export, "ROOT", root)
    assert export.flatten("anchorlm.b") == (
        "from . import anchorlm_ops_a as a\nfrom . import anchorlm_ops_a as second\n\n\n"
        "def f():\n    from .anchorlm_ops_a import x as y\n    return y\n"
    )
