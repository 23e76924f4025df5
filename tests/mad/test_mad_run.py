"""A MAD run at the smallest sizes: what it writes, that it goes on, and that its loop learns."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from anchorlm.core import UserError
from anchorlm.data.mad import TASKS, Compression, Memorisation
from anchorlm.environment import environment
from anchorlm.mad import load_mad, page, run_mad
from anchorlm.mad import run as running
from anchorlm.mad.learner import Taps, build, sines
from anchorlm.mad.loop import learn, score
from anchorlm.mad.table import Training
from anchorlm.presets import boundary_groups
from anchorlm.report.html import write_page
from killed import kept, run_through

SMALL = ["model.hidden=8", "model.heads=2", "model.kv_heads=1", "model.intermediate=8", "window=4", "slot.chunk=4",
         "training.steps=2", "training.batch=2", "training.warmup=1", "test=3", "seeds=2",
         *[f"tasks.{name}.length=16" for name in TASKS], "tasks.selective-copying.copy_tokens=3"]  # fmt: skip
TWO, LIGHT = ["transformer", "anchor"], ["memorisation", "compression"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mad")
    mad = load_mad("mad", SMALL, TWO, LIGHT)
    return mad, folder, run_mad(mad, folder, say=lambda line: None)


def test_what_is_kept(done):
    mad, folder, result = done
    stored = json.loads((folder / "mad.json").read_text())
    assert stored == json.loads(json.dumps(result)) and stored["kind"] == "mad"
    assert [row["model"] for row in stored["rows"]] == TWO and not any(row["missing"] for row in stored["rows"])
    assert all(len(cells) == 2 for row in stored["rows"] for cells in row["cells"].values())
    assert stored["environment"]["packages"]["torch"]


def test_a_finished_run_trains_nothing(done, monkeypatch):
    mad, folder, result = done
    monkeypatch.setattr(running, "measure", None)
    assert run_mad(mad, folder)["rows"] == result["rows"]


def test_a_folder_keeps_one_run(done, tmp_path, monkeypatch):
    """More models, tasks or seeds may join; what stands there is never left out, and settings never change."""
    mad, _, result = done
    learned = result["rows"][0]["cells"]["memorisation"][0]
    monkeypatch.setattr(running, "measure", lambda *given: learned)
    quiet = {"say": lambda line: None}
    run_mad(load_mad("mad", SMALL, TWO[:1], LIGHT[:1], 1), tmp_path, **quiet)
    run_mad(mad, tmp_path, **quiet)
    kept = (tmp_path / "mad.json").read_bytes()
    changes = [
        ((SMALL, ["window"], LIGHT), "it has model transformer, model anchor, which this run leaves out"),
        ((SMALL, TWO, LIGHT[1:]), "it has task memorisation, which"),
        ((SMALL, TWO, LIGHT, 1), "it has seed 1, which"),
        (([*SMALL, "training.lr=0.5"], TWO, LIGHT), "training.lr was 0.004, now 0.5"),
        (([*SMALL, "models.transformer=swa"], TWO, LIGHT), "its model transformer has changed"),
        (([*SMALL, "tasks.compression.vocab=9"], TWO, LIGHT), "its task compression has changed"),
    ]
    for given, reason in changes:
        with pytest.raises(UserError, match=f"mad.json holds another run: {reason}"):
            run_mad(load_mad("mad", *given), tmp_path, **quiet)
    assert (tmp_path / "mad.json").read_bytes() == kept


def test_a_stopped_run_goes_on(done, tmp_path, monkeypatch):
    mad, _, result = done
    seen, real = [], running.measure

    def stops(*given):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(given[2])
        return real(*given)

    monkeypatch.setattr(running, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        run_mad(mad, tmp_path, say=lambda line: None)
    assert "Not run:" in (tmp_path / "mad.md").read_text()
    monkeypatch.setattr(running, "measure", lambda *given: seen.append(given[2]) or real(*given))
    lines = []
    again = run_mad(mad, tmp_path, say=lines.append)
    assert len(seen) == len(set(seen)) == 8 and len(lines) == 5
    for row, before in zip(again["rows"], result["rows"], strict=True):
        assert row["tasks"] == before["tasks"], "the same figures as in one go"


def test_a_run_killed_again_and_again_ends_with_the_same_files(tmp_path):
    mad = load_mad("mad", SMALL, TWO, LIGHT[:1], 1)
    run_mad(mad, tmp_path / "straight", say=lambda line: None)
    kills = run_through(lambda: run_mad(mad, tmp_path / "killed", say=lambda line: None))
    assert kills >= 3 and kept(tmp_path / "killed") == kept(tmp_path / "straight")
    texts = [(tmp_path / name / "mad.md").read_text() for name in ("killed", "straight")]
    assert len({re.sub(r"[0-9.]+ \|$", "", text, flags=re.M) for text in texts}) == 1, "but for the CPU minutes"


@pytest.mark.parametrize("name", ["accuracy", "n", "steps", "loss", "train_accuracy", "cpu_seconds", None])
def test_a_damaged_part_is_named(done, tmp_path, monkeypatch, name):
    mad, folder, _ = done
    shutil.copytree(folder, tmp_path / "run")
    monkeypatch.setattr(running, "measure", lambda *given: pytest.fail("trained before all was looked at"))
    path = sorted((tmp_path / "run" / "parts").glob("*.json"))[0]
    whole, page = json.loads(path.read_text()), (tmp_path / "run" / "mad.md").read_bytes()
    for wrong in ("text", None, True, ["text"], [None]):
        value = whole["value"] | {name: wrong} if name else wrong
        path.write_text(json.dumps(whole | {"value": value}))
        if value is not None:  # as one that was never measured
            with pytest.raises(UserError, match=rf"{path.name} is damaged; remove it, and .*, .*, \d is run again"):
                run_mad(mad, tmp_path / "run")
    assert (tmp_path / "run" / "mad.md").read_bytes() == page


@pytest.mark.parametrize("text", ["", "[]", "5", "{}", '{"key": 1}'])
def test_what_is_no_part_is_measured_again(done, tmp_path, text):
    mad, folder, result = done
    shutil.copytree(folder, tmp_path / "run")
    sorted((tmp_path / "run" / "parts").glob("*.json"))[0].write_text(text)
    again = run_mad(mad, tmp_path / "run", say=lambda line: None)
    assert [row["model"] for row in again["rows"]] == [row["model"] for row in result["rows"]]


def test_the_page(tmp_path):
    mad = load_mad("mad", SMALL)
    plans, gap = mad.plans(), ("fuzzy-recall", "hybrid", 1)
    shares = dict(zip(mad.tasks, (0.9, 0.7, 0.5, 1.0, 0.4, 0.2), strict=True))
    found = {c: {"accuracy": shares[c[0]] - 0.1 * c[2], "cpu_seconds": 30.0} for c in running.cells(mad) if c != gap}
    result = page.result(mad, plans, found) | {"environment": environment()}
    text = page.markdown(result)
    assert "| anchor | 75.0 ± 7.1 | 45.0 ± 7.1 | 95.0 ± 7.1 | 35.0 ± 7.1 | 15.0 ± 7.1 | 53.0 ± 7.1 |" in text
    assert "| hybrid | 75.0 ± 7.1 | 50.0 | 95.0 ± 7.1 | 35.0 ± 7.1 | 15.0 ± 7.1 | 58.0 |" in text
    assert "| anchor | 0: 0, 1; 2: 2, 3 |" in text and "- `hybrid`: fuzzy-recall, seed 1" in text
    assert (
        f"| chance | {50 * (mad.tasks['in-context-recall'].chance() + mad.tasks['noisy-recall'].chance()):.1f} " in text
    )
    shown = write_page({"mad": [result]}, tmp_path / "mad.html", "MAD").read_text()
    assert shown.count("<svg") == 1 and "selective-copying" in shown and "75.0 ± 7.1" in shown


def test_every_model_starts_alike_and_has_its_plan():
    mad = load_mad("mad", SMALL)
    plans, task = mad.plans(), mad.tasks["compression"]
    own = {name: dict(build(task, mad.model, plans[name], seed=1).named_parameters()) for name in TWO}
    assert all(torch.equal(value, own["anchor"][name]) for name, value in own["transformer"].items())
    readers = {name: sorted(slot.read for slot in plan.slots.values()) for name, plan in plans.items()}
    assert readers["anchor"] == [(0, 1), (2, 3)] and len(readers["anchor-i"]) == 3 and len(readers["anchor-f"]) == 4
    full = {name: [i for i, reach in enumerate(plan.layers) if reach.kind == "full"] for name, plan in plans.items()}
    assert full["hybrid"] == [3] and full["transformer"] == list(range(4)) and full["anchor"] == []
    assert boundary_groups(4) != [[0, 1], [2, 3]], "which is why the table names the groups"


def test_the_decoder_reads_the_last_state_alone():
    mad = load_mad("mad", [*SMALL, "model.taps=1"])
    learner = build(Compression(length=16), mad.model, mad.plans()["transformer"], seed=0)
    hidden = torch.randn(2, 5, 8)
    learner.model.hidden = lambda ids: hidden
    first = learner(torch.zeros(2, 16, dtype=torch.long))
    hidden[:, :-1] += 1
    assert first.shape == (2, 16, 16) and torch.equal(first, learner(torch.zeros(2, 16, dtype=torch.long)))
    assert sines(3, 4).tolist()[0] == [0, 0, 1, 1]


@pytest.mark.parametrize("model", TWO)
def test_the_loop_learns(model):
    mad = load_mad("mad", SMALL, TWO, LIGHT)
    task = Memorisation(length=16, vocab=9)
    learner = build(task, mad.model, mad.plans()[model], seed=0)
    training = Training(steps=100, batch=8, lr=0.02, warmup=5, enough=0.99)
    before = score(learner, task, 8, 3, np.random.default_rng(1))
    curve = learn(learner, task, training, np.random.default_rng(0))
    right, total = score(learner, task, 8, 3, np.random.default_rng(1))
    assert total == before[1] == 64 and right / total > 0.95 > 0.7 > before[0] / total
    assert len(curve.loss) < 100 and curve.accuracy[-1] > curve.accuracy[0]


def test_columns_are_averaged_as_in_the_paper():
    """Table 4: the average of the Transformer is over five columns, the two kinds of recall in one."""
    transformer = {"in-context-recall": 99.7, "noisy-recall": 97.7, "fuzzy-recall": 55.7, "memorisation": 100.0,
                   "selective-copying": 99.9, "compression": 100.0}  # fmt: skip
    found = page._columns({task: [value] for task, value in transformer.items()})
    assert round(found["in-context and noisy recall"]["mean"], 1) == 98.7 and round(found["average"]["mean"], 1) == 90.9
    part = page._columns({"memorisation": [1.0, None]})
    assert part["average"] is None and part["memorisation"] == {"mean": 1.0, "deviation": None, "values": [1.0]}


@pytest.mark.parametrize("override, expected", [
    ("tasks.fuzzy-recall.length=7", "task fuzzy-recall: length is 7; at least"),
    ("tasks.compression.length=6", "task compression: length is 6; at least 8"),
    ("tasks.recall.length=8", "task 'recall' is unknown"),
    ("tasks.compression.lenght=8", "did you mean 'length'"),
    ("training.stepz=8", "did you mean 'steps'"),
    ("model.hidden=10", "model.hidden is 10 with 2 heads"),
    ("model.kv_heads=3", "model.kv_heads is 3"),
    ("slot.chunk=5", "model 'hybrid': slots"),
    ("model.layers=2", "model 'anchor': slots.tail.write names layer 2"),
    ("models.anchor.groups=[]", "model 'anchor': groups is"),
    ("models.anchor=anchr", "model 'anchor': preset 'anchr' is unknown; did you mean"),
    ("models.anchor=3", "model 'anchor': plan is 3"),
    ("seeds=0", "seeds"),
    ("steps", "must look like training.steps=600"),
])  # fmt: skip
def test_mistakes(override, expected):
    with pytest.raises(UserError) as error:
        load_mad("mad", [*SMALL, override])
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_models_without_slots_may_stand_alone():
    assert list(load_mad("mad", SMALL, ["transformer"]).plans()) == ["transformer"]
    with pytest.raises(UserError, match="length is 4; at least 5"):
        load_mad("mad", [*SMALL, "tasks.compression.length=4"], ["window"], ["compression"])


def test_taps_mix_a_token_with_those_before_it():
    """Against a loop; before any training nothing changes."""
    taps, x = Taps(3, 2), torch.randn(2, 5, 2)
    assert torch.equal(taps(x), x)
    torch.nn.init.normal_(taps.weight)
    for length in (1, 2, 5):
        for t in range(length):
            wanted = sum(taps.weight[back] * x[:, t - back] for back in range(min(3, t + 1)))
            assert torch.allclose(taps(x[:, :length])[:, t], wanted)


@pytest.mark.slow
def test_attention_learns_to_recall_where_it_sees_the_token_before():
    """Two layers, rows of 32 tokens: what takes thousands of steps without taps takes a hundred with them."""
    mad = load_mad("mad", ["model.layers=2"], ["transformer"])
    task = mad.tasks["in-context-recall"]
    learner = build(task, mad.model, mad.plans()["transformer"], 0)
    learn(learner, task, mad.training.model_copy(update={"steps": 300}), np.random.default_rng(0))
    right, total = score(learner, task, 64, 32, np.random.default_rng(1))
    assert right / total > 0.9
