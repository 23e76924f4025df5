"""LoLCATs, Liger, Lizard and Titan-Llama from the command line: convert, info, train, resume, generate."""

import json

import pytest
import torch

from anchorlm.convert.load import load
from hybrids import published as checkpoint
from hybrids import tokens

CASES = {
    "lolcats": ["--set", "window=8", "--set", "options.width=6"],
    "liger": ["--set", "window=8"],
    "lizard": ["--set", "window=8", "--set", "full_every=2"],
    "titan-llama": ["--set", "segment=8", "--set", "converted=2", "--set", "options.width=6"],
}
FEW = [
    "data.length=48", "data.accumulate=1", "stage2.steps=3", "stage2.lora.rank=2", "eval_every=0", "save_every=2",
]  # fmt: skip


@pytest.mark.parametrize("method", CASES)
def test_convert_train_and_generate(call, base_folder, tmp_path, method):
    out, trained = tmp_path / "d", tmp_path / "t"
    code, text, error = call("convert", base_folder, "--plan", method, *CASES[method], "-o", out)
    assert code == 0, error
    assert ("halves every" in text) == (method in ("liger", "lizard")) and ("every state twice" in text) == (
        method == "lolcats"
    )
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 60)
    stage1 = [] if method == "liger" else ["stage1.steps=3"]
    maps = ["stage1.w_maps=1"] if method == "lolcats" else []
    alone = ["stage2.steps=0"] if method == "titan-llama" else []
    sets = [part for value in [*FEW, *stage1, *maps, *alone] for part in ("--set", value)]
    code, text, error = call("train", out, "--recipe", method, "--data", tmp_path / "book.txt", *sets, "-o", trained)
    assert code == 0, error
    steps = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [s["stage"] for s in steps if "losses" in s] == ["stage1"] * 3 * (method != "liger") + ["stage2"] * 3 * (
        not alone
    )
    if method == "lolcats":
        assert set(steps[0]["losses"]) == {"mse", "maps"}
    if method == "titan-llama":
        assert set(steps[0]["losses"]) == {"ce"} and not (trained / "lora").exists()
    code, text, _ = call("generate", trained, "--prompt", "Who?", "--max-new-tokens", 3)
    assert code == 0
    model, _ = load(trained, "float32")
    ids = tokens(1, 30)
    with torch.no_grad():
        cache = model.new_cache()
        parts = [model(ids[:, :11], cache=cache).logits, model(ids[:, 11:], cache=cache).logits]
        assert torch.allclose(torch.cat(parts, 1), model(ids).logits, atol=1e-4)


@pytest.mark.parametrize("method,more", [("lolcats", []), ("titan-llama", ["--set", "converted=3"])])
def test_states_are_shared_and_compared(call, base_folder, tmp_path, method, more):
    given = [*CASES[method], *more, "--set", "groups=[[0,1,2]]"]
    code, text, error = call("convert", base_folder, "--plan", method, *given, "-o", tmp_path / "d")
    assert code == 0 and "1 shared state, " in text and "read by 3 layers" in text, error
    (tmp_path / "book.txt").write_text("The cat sat. The cat ran. " * 16)
    measured = ["--data", tmp_path / "book.txt", "--context", 40, "--documents", 2]
    code, text, error = call("analyze", tmp_path / "d", "--what", "similarity", *measured)
    assert code == 0 and "same slot" in text, error


def test_convert_takes_published_weights(call, base_folder, tmp_path):
    torch.save(checkpoint(), tmp_path / "w.pt")
    given = ["--plan", "lolcats", *CASES["lolcats"], "--weights", tmp_path / "w.pt"]
    code, _, error = call("convert", base_folder, *given, "-o", tmp_path / "d")
    assert code == 0, error
    model, _ = load(tmp_path / "d")
    own = dict(model.named_parameters())
    theirs = checkpoint()["model.layers.3.self_attn.window_factors"].flatten()
    assert torch.equal(own["backbone.model.layers.3.self_attn.readers.l3.gate_share"], theirs)
    code, _, error = call(
        "convert", base_folder, "--plan", "liger", "--weights", tmp_path / "w.pt", "-o", tmp_path / "e"
    )
    assert code == 2 and "not of the published form" in error and not (tmp_path / "e").exists()


def test_info_prints_half_lives_and_both_counts(call):
    code, text, _ = call("info", "--shape", "llama-3.1-8b", "--plan", "lolcats")
    assert code == 0 and "67,633,152" in text and "135,266,304" in text
    code, text, _ = call("info", "--shape", "llama-3.1-8b", "--plan", "liger")
    assert code == 0 and "halves every 16 tokens" in text and "4.5" in text


@pytest.mark.parametrize(
    "arguments,said",
    [
        (["--plan", "lolcats", "--set", "sinks=4"], "unknown key 'sinks'"),
        (["--plan", "liger", "--set", "mix=shared"], "rule 'gla' takes add"),
        (["--plan", "lizard", "--set", "full_every=-1"], "full_every is -1"),
        (["--plan", "lolcats", "--set", "kind=terace"], "kind is 'terace'"),
        (["--plan", "lizard", "--set", "groups=[[0,9]]"], "groups names layer 9, which has no memory to share"),
        (["--plan", "titan-llama", "--set", "later=ful"], "later is 'ful'; did you mean 'full'?"),
        (["--plan", "lolcats", "--weights", "{tmp}/none.pt"], "no such file"),
    ],
)
def test_mistakes_are_one_line(call, base_folder, tmp_path, arguments, said):
    given = [part.format(tmp=tmp_path) for part in arguments]
    code, _, error = call("convert", base_folder, *given, "-o", tmp_path / "o")
    assert code == 2 and said in error and error.count("\n") == 1 and not (tmp_path / "o").exists()
