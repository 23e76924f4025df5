"""Every mistake is one line that names the thing, with exit code 2, and leaves nothing behind."""

import os
import subprocess

import pytest

from anchorlm.core import UserError

PLACE = ["--data", "{tmp}/text.txt", "--window", "8", "--context", "40", "--budget", "30KB", "--no-needles"]
TINY = ["--set", "window=8", "--set", "chunk=8"]

MISTAKES = [
    (("convrt", "x"), "convert"),
    (("convert", "{base}", "--plann", "swa"), "--plan"),
    (("convert", "{base}"), "--out"),
    (("convert", "{base}", "--plan", "ancor", "-o", "{tmp}/o"), "'anchor'"),
    (("convert", "{base}", "--plan", "{tmp}/none.yaml", "-o", "{tmp}/o"), "no such file"),
    (("convert", "/nowhere/model", "-o", "{tmp}/o"), "/nowhere/model"),
    (("convert", "{base}", "--set", "window=0", "-o", "{tmp}/o"), "window is 0"),
    (("convert", "{base}", "--set", "window=-3", "-o", "{tmp}/o"), "window is -3"),
    (("convert", "{base}", "--set", "window=8", "--set", "chunk=0", "-o", "{tmp}/o"), "chunk is 0"),
    (("convert", "{base}", "--set", "window", "-o", "{tmp}/o"), "must look like"),
    (("convert", "{base}", *TINY, "--set", "rul=linear", "-o", "{tmp}/o"), "'rule'"),
    (("convert", "{base}", *TINY, "--dtype", "float31", "-o", "{tmp}/o"), "'float32'"),
    (("convert", "{base}", *TINY, "--device", "gpu", "-o", "{tmp}/o"), "device 'gpu'"),
    (("convert", "{base}", *TINY, "-o", "{folder}"), "not empty"),
    (("convert", "{folder}", *TINY, "-o", "{tmp}/o"), "converted model already"),
    (("info",), "--shape"),
    (("info", "--shape", "llama-3.1-8c"), "llama-3.1-8b"),
    (("generate", "{folder}"), "empty"),
    (("generate", "{folder}", "--file", "{tmp}/none.txt"), "no such file"),
    (("generate", "{folder}", "--file", "{tmp}/empty.txt"), "empty"),
    (("generate", "{folder}", "--file", "{tmp}/binary.txt"), "UTF-8"),
    (("generate", "{folder}", "--prompt", "x", "--top-p", "2"), "top-p"),
    (("generate", "{tmp}/nothing", "--prompt", "x"), "nothing"),
    (("convert", "{base}", *TINY, "--seed", "9" * 30, "-o", "{tmp}/o"), "--seed"),
    (("convert", "{base}", *TINY, "--device", "meta", "-o", "{tmp}/o"), "holds no values"),
    (("convert", "{base}", *TINY, "-o", ""), "--out is empty"),
    (("convert", "{base}", *TINY, "-o", "{base}", "--overwrite"), "is or holds the input folder"),
    (("merge", "{folder}", "-o", "{base}", "--overwrite"), "is or holds the input folder"),
    (("merge", "{folder}", "-o", "{tmp}", "--overwrite"), "is or holds the input folder"),
    (("info", "--shape", ""), "shape ''"),
    (("generate", "{folder}", "--prompt", "x", "--temperature", "nan"), "temperature is nan"),
    (
        ("generate", "{folder}", "--file", "{tmp}/text.txt", "--limit", "0"),
        "'--limit': Input should be greater than or equal to 1, not '0'",
    ),
    (("generate", "{folder}", "--file", "{tmp}"), "is a folder"),
    (("generate", "{folder}", "--file", "{tmp}/zero.txt"), "zero byte"),
    (("train", "{folder}", "--data", "{tmp}/one.txt", "-o", "{tmp}/o", "--json"), "rows of 1024"),
    (
        (
            "train",
            "{folder}",
            "--data",
            "{tmp}/text.txt",
            "-o",
            "{tmp}/o",
            "--json",
            "--set",
            "data.length=8",
            "--eval-data",
            "{tmp}/one.txt",
        ),
        "rows of 8",
    ),
    (("train", "{folder}", "--set", "seed=" + "9" * 30, "--data", "{tmp}/text.txt", "-o", "{tmp}/o"), "seed"),
    (("train", "{folder}", "--mix", "recal=0.2", "--data", "{tmp}/text.txt", "-o", "{tmp}/o"), "did you mean 'recall'"),
    (("train", "{folder}", "--mix", "recall", "--data", "{tmp}/text.txt", "-o", "{tmp}/o"), "like recall=0.2"),
    (("train", "{folder}", "--mix", "recall=2", "--data", "{tmp}/text.txt", "-o", "{tmp}/o"), "data.mix.recall = 2"),
    (("merge", "{base}", "-o", "{tmp}/o"), "not an anchorlm folder"),
    (("train", "{folder}", "--recipe", "ancho", "--data", "x", "-o", "{tmp}/o"), "'anchor'"),
    (("train", "{folder}", "--set", "stage1.stepz=3", "--data", "x", "-o", "{tmp}/o"), "'steps'"),
    (("train", "{folder}", "--data", "{tmp}/none.txt", "-o", "{tmp}/o"), "none.txt"),
    (("train", "{folder}", "-o", "{tmp}/o"), "--data"),
    (("eval", "{folder}", "--suite", "pl", "--data", "x"), "'ppl'"),
    (("eval", "{folder}"), "--data"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "context=5"), "--context"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "depths=x"), "depths is 'x'"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "depths=[]"), "depths is []"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "block=2026-99-99"), "is not valid YAML"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "lengths=[0]"), "lengths is [0]"),
    (("train", "{folder}", "--set", "stage1.lr=.inf", "--data", "x", "-o", "{tmp}/o"), "stage1.lr"),
    (("train", "{folder}", "--set", "stage2.lora.targets=[]", "--data", "x", "-o", "{tmp}/o"), "targets"),
    (("eval", "{folder}", "--data", "{tmp}/none.txt"), "none.txt"),
    (("place", "{base}", "-o", "{tmp}/p.yaml"), "--data"),
    (("place", "{base}", *PLACE, "-o", "{tmp}/p.txt"), "must end in .yaml"),
    (("place", "{base}", *PLACE, "--report", "{tmp}"), "is a folder"),
    (("place", "{base}", *PLACE, "--keep", "slot"), "did you mean 'slots'?"),
    (("place", "{base}", *PLACE, "--rule", "swiglu"), "'swiglu'"),
    (("place", "{base}", *PLACE, "--budget", "two"), "--budget 'two' is not a size"),
    (("place", "{base}", *PLACE, "--budget", "2KB"), "the smallest state, full in one layer, takes 2,560"),
    (("place", "{base}", *PLACE, "--layers", "40"), "the model has layers 0 to 3"),
    (("place", "{base}", *PLACE, "--window", "40"), "below --context, 40 tokens"),
    (("place", "{base}", *PLACE, "--context", "60"), "context 60 needs 120, as 2 pieces of 60"),
    (("place", "{base}", "--data", "{tmp}/none.txt", *PLACE[2:]), "none.txt"),
    (("place", "{folder}", *PLACE), "converted model already"),
    (("eval", "{folder}", "--suite", "ppl", "--data", "{tmp}/text.txt", "--set", "kind=zz"), "kind 'zz'"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "templates=zz"), "template 'zz'"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "templates=5"), "templates is 5"),
    (("eval", "{folder}", "--suite", "rular"), "'ruler'"),
    (("eval", "{folder}", "--suite", "ruler", "--context", "100"), "the shortest is 256 tokens"),
    (("eval", "{folder}", "--suite", "ruler", "--set", "ruler.squad={tmp}/none.json"), "none.json does not exist"),
    (("eval", "{folder}", "--suite", "ar", "--set", "ruler.samples=2"), "which is not run"),
    (("eval", "{folder}", "--suite", "ar", "--data", "{tmp}/text.txt"), "read by no suite of ar"),
    (("eval", "{folder}", "--suite", "recall"), "recall.fda=FILE"),
    (("eval", "{folder}", "--suite", "ar", "--report", "{tmp}"), "is a folder"),
    (("eval", "{base}", "--suite", "ar", "--context", "99999"), "beyond the model"),
    (("eval", "{folder}", "--suite", "ar", "--vs", "window", "--vs", "window"), "'window' is named twice"),
    (("eval", "{base}", "--suite", "ar", "--vs", "{base}"), "is named twice"),
    (("eval", "{folder}", "--suite", "ar", "--vs", "{tmp}/nothing"), "nothing"),
    (("eval", "{folder}", "--suite", "ar", "--vs", "teecher"), "teecher"),
    (("eval", "{folder}", "--suite", "niah", "--set", "haystack=filler", "--set", "templates=[]"), "an empty list"),
    (("eval", "{folder}", "--data", "{tmp}/text.txt", "--set", "tails=yess"), "tails is 'yess'; give true or false"),
    (("eval", "{folder}", "--suite", "ruler", "--set", "ruler.samples=null"), "ruler.samples is None"),
    (("train", "{folder}", "--set", "stage1=3", "--data", "x", "-o", "{tmp}/o"), "'stage1=3': stage1 is a group of"),
    (("train", "{folder}", "--set", "stage2.lora=3", "--data", "x", "-o", "{tmp}/o"), "stage2.lora is a group"),
    (("mad", "--set", "training=3", "-o", "{tmp}/o"), "'training=3': training is a group of settings; set one of"),
    (("report", "{tmp}/text.txt", "-o", "{tmp}/r.html"), "text.txt is a file; name the folder that holds it"),
    (("report", "{tmp}", "-o", "{tmp}/text.txt/r.html"), "text.txt is a file; name a folder"),
    (("eval", "{folder}", "--suite", "ar", "--report", "{tmp}/text.txt/r.html"), "text.txt is a file; name a folder"),
    *(
        (("eval", "{folder}", "--suite", suite, "--set", f"{suite}.{name}={{tmp}}"), "is a folder; name a file")
        for suite, names in {"recall": ("squad", "fda", "swde"), "ruler": ("squad", "hotpotqa")}.items()
        for name in names
    ),
    (("analyze", "{folder}", "--what", "cost", "--results", "{tmp}"), "is a folder; name a file"),
    (("convert", "{base}", "--weights", "{tmp}", "--plan", "lolcats", "-o", "{tmp}/o"), "is a folder; name a file"),
    (("info", "{base}", "--plan", "{tmp}", "--rules", "{tmp}"), "is a folder; name a file"),
    (("info", "{folder}", "--set", "window=8"), "hybrid with a plan of its own, which --set cannot change"),
    (("train", "trained", "--data", "{tmp}/text.txt", "-o", "{tmp}/o"), "folder 'trained' does not exist"),
]


@pytest.mark.parametrize("arguments, line", MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_2(call, base_folder, folder, tmp_path, arguments, line):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x80")
    (tmp_path / "one.txt").write_text("a")
    (tmp_path / "text.txt").write_text("some words " * 9)
    (tmp_path / "zero.txt").write_bytes(b"ab\0c")
    names = {"base": base_folder, "folder": folder, "tmp": tmp_path}
    before = sorted(tmp_path.iterdir())
    code, text, error = call(*[str(argument).format(**names) for argument in arguments])
    assert code == 2 and text == ""
    shown = error.rstrip("\n")
    assert shown.startswith("error: ") and shown.count("\n") == 0 and line in shown, error
    assert sorted(tmp_path.iterdir()) == before


def test_wrong_data_is_found_before_anything_is_printed(call, folder, tmp_path):
    (tmp_path / "one.txt").write_text("a")
    code, text, error = call("train", folder, "--data", tmp_path / "one.txt", "-o", tmp_path / "o")
    assert code == 2 and text == "" and error.startswith("error: ")


def test_a_damaged_folder_is_one_line(call, folder):
    (folder / "memory.safetensors").write_bytes(b"no tensors here")
    code, _, error = call("generate", folder, "--prompt", "x")
    assert code == 2 and "memory.safetensors is damaged" in error


def test_the_output_may_be_the_empty_folder_one_stands_in(call, base_folder, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert call("convert", base_folder, *TINY, "-o", ".")[0] == 0
    assert (tmp_path / "here" / "memory.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_folder_filled_meanwhile_is_kept(tmp_path):
    from anchorlm.core import atomic_dir

    with pytest.raises(UserError, match="another process"), atomic_dir(tmp_path / "o") as folder:
        (folder / "mine").touch()
        (tmp_path / "o").mkdir()
        (tmp_path / "o" / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["o", "theirs"]


def test_a_text_may_be_read_without_writing_and_from_a_pipe(call, folder, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["bash", "-c", f"echo some words > {pipe}"])
    code, text, figures = call("generate", folder, "--file", pipe, "--raw", "--max-new-tokens", 0)
    assert writer.wait() == 0 and code == 0 and text == "\n" and "read 11 tokens" in figures


UNFINISHED = [
    ("merge", "{run}", "-o", "{tmp}/o"), ("info", "{run}"), ("generate", "{run}", "--prompt", "x"),
    ("eval", "{run}", "--suite", "ar"), ("analyze", "{run}", "--what", "cost"), ("convert", "{run}", "-o", "{tmp}/o"),
    ("train", "{run}", "--data", "{tmp}/text.txt", "-o", "{tmp}/o"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", UNFINISHED, ids=[row[0] for row in UNFINISHED])
def test_a_training_that_is_not_finished_is_named(call, tmp_path, arguments):
    """Whether it was stopped before its first checkpoint or behind one."""
    (tmp_path / "text.txt").write_text("some words " * 9)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    for name in ("env.json", "checkpoints"):
        (tmp_path / "run" / name).mkdir() if name == "checkpoints" else (tmp_path / "run" / name).touch()
        code, shown, error = call(*[word.format(run=tmp_path / "run", tmp=tmp_path) for word in arguments])
        said = (
            f"error: {tmp_path / 'run'} is a training run that is not finished; the same train command goes on with it"
        )
        assert code == 2 and shown == "" and error.rstrip("\n") == said
        assert not (tmp_path / "o").exists()


DAMAGE = {
    "config.json": [
        ('"num_attention_heads": 4', '"num_attention_heads": null', "backbone.num_attention_heads is None"),
        ('"num_hidden_layers": 4', '"num_hidden_layers": "four"', "backbone.num_hidden_layers is 'four'"),
        ('"model_type": "anchorlm"', '"model_type": "anchorlm", "transformers_range": "hey"', "transformers_range"),
    ],
    "tokenizer.json": [("{", "", "tokenizer cannot be read")],
}


@pytest.mark.parametrize("file, old, new, line", [(f, *row) for f, rows in DAMAGE.items() for row in rows])
def test_a_damaged_part_is_named(call, folder, file, old, new, line):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    code, _, error = call("generate", folder, "--prompt", "x")
    assert code == 2 and error.count("\n") == 1 and line in error


def test_memory_of_whole_numbers_is_damaged(call, folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "memory.safetensors")
    name = sorted(tensors)[0]
    save_file(tensors | {name: tensors[name].int()}, folder / "memory.safetensors")
    code, _, error = call("generate", folder, "--prompt", "x")
    assert code == 2 and "holds int32" in error
