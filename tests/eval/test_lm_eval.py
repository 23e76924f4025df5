"""The adapter for lm-evaluation-harness, and that harness and our own scorer agree to the example.

The harness reads the same local files through YAML files that include its own tasks, so wording, fewshots, metrics and
its handling of requests are its own. Skipped where the extra `eval` is not installed.
"""

import importlib
import importlib.util
import json
import logging
import os
from pathlib import Path

import pytest

from anchorlm.core import UserError
from anchorlm.eval.accuracy import measure
from hybrids import base_folder, make
from questions import RECORDS, SUBJECTS, mmlu_records, sets_of, write_all, write_records
from small import char_tokenizer, tiny_llama

__all__ = ["base_folder"]
FOUND = importlib.util.find_spec("lm_eval")
HARNESS = Path(FOUND.origin).parent if FOUND else None
needed = pytest.mark.skipif(not HARNESS, reason="lm_eval is not installed: pip install 'anchorlm[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # the harness and what it imports have warnings of their own
THEIRS = {
    "lambada": "lambada/lambada_openai.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
}
SPLITS = {"piqa": "validation", "hellaswag": "validation", "winogrande": "validation"}


def write_task(folder, name, theirs, files):
    """A task of the harness on local files."""
    settings = {"include": str(HARNESS / "tasks" / theirs), "task": f"local_{name}"}
    kwargs = {"data_files": {split: str(file) for split, file in files.items()}, "cache_dir": str(folder / "cache")}
    settings |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": kwargs, "training_split": None}
    if "test" not in files:
        settings |= {"test_split": None}
    elif "validation" not in files:
        settings |= {"validation_split": None}
    (folder / f"local_{name}.yaml").write_text(json.dumps(settings))  # JSON is YAML
    return f"local_{name}"


def local_tasks(folder, records=RECORDS, subjects=SUBJECTS, mmlu=mmlu_records):
    """Names of the harness's tasks on the records, by ours; MMLU as letters and as cloze."""
    found = {}
    for name, rows in records.items():
        split = SPLITS.get(name, "test")
        file = write_records(folder / f"{name}.jsonl", rows)
        found[name] = write_task(folder, name, THEIRS[name], {split: file})
    for subject, count in subjects.items():
        files = {
            split: write_records(folder / f"{subject}_{split}.jsonl", mmlu(subject, split, size))
            for split, size in (("test", count), ("dev", 5))
        }
        for form, where in (("letters", "default"), ("cloze", "continuation")):
            theirs = f"mmlu/{where}/mmlu_{subject}.yaml"
            found[subject, form] = write_task(folder, f"{subject}_{form}", theirs, files)
    return found


def ours(model, tokenizer):
    return importlib.import_module("anchorlm.eval.lm_eval").HarnessModel(model, tokenizer)


def theirs(model, tokenizer):
    """The harness's own class for a causal model, which no line of this package has a part in."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=1)


def harness(adapter, folder, names, limit=None):
    """The harness's results and samples of its tasks `names`."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = {}
    for shots in (0, 5):  # the harness takes one number for all tasks of a call
        chosen = [name for key, name in names.items() if (shots == 5) == (isinstance(key, tuple) and "letters" in key)]
        if chosen:
            done = simple_evaluate(model=adapter, tasks=chosen, num_fewshot=shots, task_manager=manager, limit=limit,
                                   bootstrap_iters=0, log_samples=True)  # fmt: skip
            for name in chosen:
                found[name] = (done["results"][name], sorted(done["samples"][name], key=lambda s: s["doc_id"]))
    return found


def agree(row, found, name, tolerance):
    """Every log-likelihood, every verdict and every mean of one task."""
    results, samples = found
    assert len(samples) == len(row["answers"][name])
    for answer, sample in zip(row["answers"][name], samples, strict=True):
        scores = [float(response[0][0]) for response in sample["resps"]]
        assert answer["scores"] == pytest.approx(scores, abs=tolerance)
        for metric in ("acc", "acc_norm"):
            if metric in sample and metric in answer:
                assert sample[metric] == answer[metric], (name, sample["doc_id"], metric)
    for metric in ("acc", "acc_norm", "perplexity"):
        if f"{metric},none" in results and metric in row["tasks"][name]:
            assert results[f"{metric},none"] == pytest.approx(row["tasks"][name][metric]["value"], rel=1e-4)


def check_agreement(model, tokenizer, sets, folder, names, tolerance=1e-3, limit=None, wrap=ours):
    adapter = wrap(model, tokenizer)
    found = harness(adapter, folder, names, limit)
    rows = {suite: measure(model, tokenizer, some, pooled=suite != "commonsense") for suite, some in sets.items()}
    for name, task in names.items():
        suite = "commonsense" if isinstance(name, str) else {"letters": "mmlu", "cloze": "mmlu-cloze"}[name[1]]
        agree(rows[suite], found[task], name if isinstance(name, str) else name[0], tolerance)
    if wrap is ours:
        cut = sum(answer["cut"] for row in rows.values() for some in row["answers"].values() for answer in some)
        assert (adapter.truncated > 0) == (cut > 0)
    return rows


@needed
@pytest.mark.parametrize("positions, bos", [(4096, False), (4096, True), (200, False)])
def test_both_scorers_agree_to_the_example(positions, bos, tmp_path):
    sets = sets_of(write_all(tmp_path / "ours"), "commonsense", "mmlu", "mmlu-cloze")
    model = tiny_llama(max_positions=positions)
    check_agreement(model, char_tokenizer(bos), sets, tmp_path, local_tasks(tmp_path))


@needed
@pytest.mark.parametrize("positions, bos", [(4096, False), (4096, True), (200, False)])
def test_the_own_model_class_of_the_harness_agrees_too(positions, bos, tmp_path):
    """On a teacher, which that class can read: nothing of ours is in the forward pass, in cutting or in summing."""
    sets = sets_of(write_all(tmp_path / "ours"), "commonsense", "mmlu", "mmlu-cloze")
    model, tokenizer = tiny_llama(max_positions=positions), char_tokenizer(bos)
    check_agreement(model, tokenizer, sets, tmp_path, local_tasks(tmp_path), wrap=theirs)


@needed
@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("ANCHORLM_TEST_DATA" not in os.environ, reason="ANCHORLM_TEST_DATA names no folder of task folders")
def test_and_on_a_real_model_with_real_questions(smollm2):
    """Twenty questions of each task and two of each subject: the harness's class scores every choice as ours does."""
    from lm_eval.api.instance import Instance

    data, farthest, count = os.environ["ANCHORLM_TEST_DATA"], 0.0, 0
    sets = [*sets_of(data, "commonsense", limit=20)["commonsense"], *sets_of(data, "mmlu", limit=2)["mmlu"][::6]]
    hflm, mine = theirs(smollm2.model, smollm2.tokenizer), measure(smollm2.model, smollm2.tokenizer, sets)["answers"]
    for one in sets:
        pairs = [pair for question in one.questions for pair in question.pairs()]
        found = hflm.loglikelihood([Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(pairs)])
        scores = [score for answer in mine[one.name] for score in answer["scores"]]
        assert len(scores) == len(found)
        farthest = max(farthest, *(abs(score - other) for score, (other, _) in zip(scores, found, strict=True)))
        count += len(found)
        if one.words:
            assert [answer["acc"] for answer in mine[one.name]] == [int(greedy) for _, greedy in found]
    print(f"{count} log-likelihoods of {len(sets)} tasks and subjects, farthest apart {farthest:.1e}")
    assert farthest < 1e-3


@needed
def test_and_of_a_hybrid(tmp_path, base_folder):
    sets = sets_of(write_all(tmp_path / "ours"), "commonsense")
    names = local_tasks(tmp_path, subjects={})
    check_agreement(make(base_folder, "anchor"), char_tokenizer(), sets, tmp_path, names)


@needed
def test_length_rolling_and_writing(base_folder, caplog):
    from lm_eval.api.instance import Instance

    adapt = importlib.import_module("anchorlm.eval.lm_eval").HarnessModel
    hybrid, teacher = make(base_folder, "anchor"), tiny_llama(layers=4)

    def request(*arguments):
        return Instance("generate_until", {}, arguments, 0)

    free, held = adapt(hybrid, char_tokenizer()), adapt(teacher, char_tokenizer())
    assert free.max_length == 2**31 - 1 and held.max_length == 512
    text = "the boats went out and came back. " * 30
    whole = measure_text(hybrid, text)
    assert free.loglikelihood_rolling([request(text)])[0] == pytest.approx(whole, rel=1e-4)
    pieces = [text[begin : begin + 512] for begin in range(0, len(text), 512)]
    assert len(pieces) == 2 and held.loglikelihood_rolling([request(text)])[0] < 0
    written = free.generate_until([request("ab", {"until": [], "max_gen_toks": 6})])[0]
    stop = written[2:4]
    shorter = free.generate_until([request("ab", {"until": [stop], "max_gen_toks": 6})])[0]
    assert shorter == written[: written.find(stop)]
    with caplog.at_level(logging.WARNING):
        held.generate_until([request(text, {"until": ["\n"], "max_gen_toks": 6, "temperature": 0.0})])
    assert held.truncated == 1 and "1 of 1 requests lost the beginning" in caplog.text


def measure_text(model, text):
    import torch

    from anchorlm.eval.scoring import token_nll

    ids = torch.tensor([[256, *char_tokenizer()(text)["input_ids"]]])
    return -float(token_nll(model, ids).double().sum())


@needed
def test_made_from_model_args(base_folder):
    adapt = importlib.import_module("anchorlm.eval.lm_eval").HarnessModel
    made = adapt.create_from_arg_string(f"path={base_folder},max_length=64", {"batch_size": 1, "device": None})
    assert made.max_length == 64
    assert adapt(tiny_llama(), char_tokenizer(), max_length=1024).max_length == 512
    with pytest.raises(UserError, match="max_length is 0"):
        adapt(tiny_llama(), char_tokenizer(), max_length=0)
    with pytest.raises(UserError, match="'pth' is unknown; did you mean 'path'"):
        adapt.create_from_arg_obj({"pth": "x"})
    with pytest.raises(UserError, match="path=DIR"):
        adapt.create_from_arg_obj({})


@pytest.mark.skipif(bool(HARNESS), reason="lm_eval is installed")
def test_without_the_harness_the_extra_is_named():
    with pytest.raises(UserError, match=r"pip install 'anchorlm\[eval\]'"):
        importlib.import_module("anchorlm.eval.lm_eval")
