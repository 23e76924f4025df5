import errno
import json
import logging
import os
import subprocess
import sys
import time

import pytest

import anchorlm
from anchorlm.cli import __main__ as program
from anchorlm.cli import options, show
from anchorlm.convert.save import save
from anchorlm.core import UserError
from hybrids import make

TINY = ["--set", "window=8", "--set", "chunk=8"]


def test_convert_info_generate_merge_in_a_row(call, base_folder, tmp_path):
    out, merged = tmp_path / "d", tmp_path / "m"
    code, text, _ = call("convert", base_folder, "--plan", "anchor", *TINY, "-o", out)
    assert code == 0 and "window 8 + 4 sinks" in text and "fast weights" in text and "seed=0" in text
    code, text, _ = call("info", out)
    assert code == 0 and "swiglu-ttt" in text
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 40)
    code, text, figures = call(
        "generate", out, "--file", tmp_path / "book.txt", "--prompt", "Who?", "--max-new-tokens", 3
    )
    assert code == 0 and "tokens at" in figures and "fast weights" in figures
    assert call("merge", out, "-o", merged)[0] == 0
    code, again, _ = call(
        "generate", merged, "--file", tmp_path / "book.txt", "--prompt", "Who?", "--max-new-tokens", 3
    )
    assert again == text


def test_version(call):
    assert call("--version") == (0, f"anchorlm {anchorlm.__version__}\n", "")


def test_json_is_one_object_and_nothing_else(call, folder, base_folder, tmp_path):
    for arguments in (
        ("info", folder),
        ("info", base_folder, "--plan", "swa", "--set", "window=8"),
        ("info", "--shape", "llama-3.1-8b", "--plan", "anchor"),
        ("convert", base_folder, *TINY, "-o", tmp_path / "c"),
        ("generate", folder, "--prompt", "hello", "--max-new-tokens", 2),
        ("merge", folder, "-o", tmp_path / "m"),
        ("doctor",),
    ):
        code, text, _ = call(*arguments, "--json")
        assert code == 0 and isinstance(json.loads(text), dict), arguments


def test_info_gives_the_paper_s_bytes_without_weights(call):
    wanted = {
        "anchor-f": 201_326_592,
        "anchor-i": 176_160_768,
        "anchor": 12_582_912,
        "anchor-private": 37_748_736,
        "anchor-hybrid": 50_331_648,
    }
    for plan, size in wanted.items():
        found = json.loads(call("info", "--shape", "llama-3.1-8b", "--plan", plan, "--json")[1])
        assert found["state_bytes"]["fast weights"] == size
        assert found["parameters"]["backbone"] == 8_030_261_248


def test_info_shows_single_heads_and_their_bytes(call, tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("attention: {kind: window, window: 128, sinks: 4}\nlayers: {18: {heads: {0: full, 2: full}}}\n")
    given = ("info", "--shape", "smollm2-135m", "--plan", file, "--set", "layers.20.heads.1=full")
    code, text, error = call(*given)
    assert code == 0 and "heads 0, 2 full" in text, error
    parts = json.loads(call(*given, "--json")[1])["state_bytes"]
    head = 2 * 64 * 2
    assert parts["full attention per token"] == 3 * head
    assert parts["window ring"] == (30 * 3 - 3) * 127 * head and parts["sinks"] == (30 * 3 - 3) * 4 * head
    code, _, error = call(*given[:-1], "layers.20.heads.3=full")
    assert code == 2 and error.strip().endswith("layer 20.heads names head 3; the model has KV heads 0 to 2")


def test_info_needs_only_the_config(call, folder):
    for file in folder.glob("*.safetensors"):
        file.unlink()
    code, text, _ = call("info", folder, "--json")
    assert code == 0
    found = json.loads(text)
    assert found["parameters"]["total"] == sum(found["parameters"][part] for part in ("backbone", "memory", "lora"))


def test_info_counts_lora_as_the_model_does(call, base_folder, tmp_path):
    from anchorlm.convert.adapters import add_lora, lora_parameters

    model = make(base_folder, "anchor")
    add_lora(model, 3, 6, ["q", "v"])
    save(model, tmp_path / "x")
    found = json.loads(call("info", tmp_path / "x", "--json")[1])
    assert found["parameters"]["lora"] == sum(p.numel() for p in lora_parameters(model).values())
    assert found["parameters"]["total"] == sum(p.numel() for p in model.parameters())


def test_train_resume_eval_and_generate(call, folder, base_folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog, " * 60)
    sizes = ["--set", "data.length=32", "stage1.steps=2", "stage2.steps=2", "eval_every=0", "stage2.lora.rank=2"]
    code, shown, _ = call("train", folder, "--dry-run", *sizes)
    assert code == 0 and "memory" in shown and "lora" in shown.lower()
    trained = tmp_path / "trained"
    code, shown, _ = call("train", folder, "--data", text, "-o", trained, *sizes, "--json")
    assert code == 0 and json.loads(shown)["rows"]
    code, shown, error = call("train", folder, "--data", text, "-o", trained, *sizes)
    assert code == 0, error
    options = ["--data", text, "--context", 64, "--limit", 2]
    code, shown, error = call(
        "eval", trained, *options, "--vs", base_folder, "window", "-o", tmp_path / "figures", "--json"
    )
    assert code == 0, error
    rows = json.loads(shown)["ppl"]["rows"]
    assert [row["model"] for row in rows] == [str(trained), str(base_folder), "window"]
    assert all(row["n"] == 2 and row["value"] > 1 for row in rows)
    assert "perplexity" in call("eval", trained, *options)[1]
    assert call("generate", trained, "--prompt", "the quick", "--max-new-tokens", 3)[0] == 0


def test_figures_while_reading(call, folder, tmp_path):
    (tmp_path / "book.txt").write_text("abcdefgh" * 60)
    arguments = (
        "--file",
        tmp_path / "book.txt",
        "--raw",
        "--limit",
        300,
        "--figures-every",
        100,
        "--max-new-tokens",
        2,
    )
    code, _, figures = call("generate", folder, *arguments)
    assert code == 0
    states = [
        line.split("state ")[1].split(" bytes")[0] for line in figures.splitlines() if "for one more token" in line
    ]
    assert len(states) == 3 and "read 300 tokens" in figures
    code, text, _ = call("generate", folder, *arguments, "--json")
    assert [point["tokens"] for point in json.loads(text)["points"]] == [100, 200, 300]


@pytest.mark.parametrize(
    "error, code, line",
    [
        (UserError("a\nb"), 2, "a b"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 2, "disk is full while writing /x/y"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 2, "disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "/x: permission denied"),
        (MemoryError(), 1, "out of memory"),
        (KeyError("k"), 1, "KeyError: 'k' (ANCHORLM_DEBUG=1"),
    ],
)
def test_every_failure_has_its_code(error, code, line):
    assert program.classify(error)[0] == code
    assert line in program.classify(error)[1]


def test_training_that_had_to_stop_says_so_alone():
    from anchorlm.train.errors import TrainingError

    assert program.classify(TrainingError("step 3: the loss is\nnot finite")) == (1, "step 3: the loss is not finite")


def test_what_the_library_logs_is_a_line_on_stderr(call):
    call("--help")
    logging.getLogger("anchorlm").info("converting %s", "x")
    code, text, error = call("info", "--shape", "smollm2-135m", "--plan", "anchor", "--json")
    assert code == 0 and json.loads(text) and error == "converting x\n"


def _raise(error):
    def function(*_, **__):
        raise error

    return function


def test_the_traceback_needs_the_debug_variable(call, folder, monkeypatch):
    monkeypatch.setattr("anchorlm.convert.summary.summary", _raise(ZeroDivisionError("oops")))
    code, _, error = call("info", folder)
    assert code == 1 and "Traceback" not in error and "oops" in error
    monkeypatch.setenv("ANCHORLM_DEBUG", "1")
    assert "Traceback" in call("info", folder)[2]


def test_interrupt_is_130(call, folder, monkeypatch):
    monkeypatch.setattr("anchorlm.convert.summary.summary", _raise(KeyboardInterrupt()))
    code, _, error = call("info", folder)
    assert code == 130 and "Traceback" not in error


def test_a_full_disk_leaves_nothing(call, base_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("anchorlm.convert.save.save_file", _raise(OSError(errno.ENOSPC, "No space left on device")))
    code, _, error = call("convert", base_folder, *TINY, "-o", tmp_path / "o")
    assert code == 2 and "disk is full" in error
    assert not list(tmp_path.iterdir())


def test_help_lists_the_verbs_and_stays_quick():
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv = ['anchorlm', '--help']; import anchorlm.cli.__main__ as m; m.main()",
    ]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and time.monotonic() - started < 5
    for verb in ("doctor", "convert", "info", "train", "eval", "generate", "merge", "results", "quickstart"):
        assert f"  {verb} " in done.stdout


def test_help_imports_neither_torch_nor_transformers():
    code = (
        "import sys; sys.argv = ['anchorlm']; import anchorlm.cli.__main__ as m; m.run(['--help']);"
        "print([n for n in ('torch', 'transformers', 'peft') if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_a_closed_pipe_is_silent(folder):
    command = f"{sys.executable} -m anchorlm.cli info --help | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0 and done.stderr == ""


def test_list_options_take_several_values():
    spread = options.spread(["d", "--data", "a", "b", "-o", "x", "--data", "c", "--json"], ["--data"])
    assert spread == ["d", "--data", "a", "--data", "b", "-o", "x", "--data", "c", "--json"]
    assert options.spread(["--set", "a=-1"], ["--set"]) == ["--set", "a=-1"]
    assert options.spread(["--data"], ["--data"]) == []


def test_sets_are_typed_and_nested():
    values = options.parse_sets(
        ["window=128", "slots.head.map={kind: dense}", "gap=true", "rule=linear", "step=1.5e-2"]
    )
    assert values == {
        "window": 128,
        "slots": {"head": {"map": {"kind": "dense"}}},
        "gap": True,
        "rule": "linear",
        "step": 0.015,
    }
    for bad in ("x", "=3", "a..b=1", "a=[1"):
        with pytest.raises(UserError, match="--set"):
            options.parse_sets([bad])


def test_progress_is_plain_lines_in_a_pipe(capsys):
    with show.Progress("reading", every=0) as progress:
        progress(10, 20)
        progress(20, 20)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading: 10 of 20 tokens") and len(lines) == 2 and "\r" not in "".join(lines)


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "anchorlm", "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "doctor" in done.stdout
