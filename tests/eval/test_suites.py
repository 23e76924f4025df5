"""Suites of generated and read samples: perfect readers get all, counts and intervals, pairs, resume, bad input."""

import json
import re
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorlm.core import UserError
from anchorlm.eval import SUITES, EvalOptions, details, lines, pairs, prepare, run_eval, run_prepared, table
from anchorlm.eval.ar import ArOptions
from anchorlm.eval.niah import niah_summary, text_of
from anchorlm.eval.recall import RecallOptions
from anchorlm.eval.ruler import RulerOptions
from anchorlm.eval.stats import bootstrap_ratio
from anchorlm.eval.suite import compare_samples, sampled_row
from anchorlm.eval.suites import compare_niah
from anchorlm.eval.tasks import CommonsenseOptions, MmluOptions
from small import char_tokenizer, tiny_llama

TOKENIZER = char_tokenizer()


class Reader(torch.nn.Module):
    """Reads everything and writes what `next(ids)` says, one token after the other."""

    def __init__(self, following, positions=100_000):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = SimpleNamespace(max_position_embeddings=positions, to_dict=dict)
        self.following = following

    def forward(self, input_ids, cache=None, use_cache=True, logits_to_keep=0):
        cache = list(cache) if cache is not None else []
        logits = torch.zeros(*input_ids.shape, 258)
        for t, token in enumerate(input_ids[0].tolist()):
            cache.append(token)
            logits[0, t, self.following(cache)] = 1
        return SimpleNamespace(logits=logits[:, -logits_to_keep:], cache=cache)


def saying(prepared):
    """A reader that knows each prompt's answers."""
    known = {
        tuple(item.ids.tolist()): [*TOKENIZER(" " + ", ".join(item.answers))["input_ids"], 256]
        for material in prepared.materials.values()
        for item in material.items
    }

    def following(ids):
        for size in range(len(ids), max(0, len(ids) - 200), -1):
            if (answer := known.get(tuple(ids[:size]))) is not None:
                return answer[min(len(ids) - size, len(answer) - 1)]
        return 0

    return Reader(following)


def repeating(window=10**9):
    """A reader that says what followed the same two tokens before, when that is within its window."""

    def following(ids):
        for back in range(1, min(window + 1, len(ids) - 1)):
            if ids[-2 - back : -back] == ids[-2:]:
                return ids[-back]
        return 257  # never the right one

    return Reader(following)


def ready(suite, context, **options):
    return prepare(suite, TOKENIZER, EvalOptions.of(context=context, **options))


TASKS = ["niah_single_1", "niah_multivalue", "vt", "fwe"]


def test_a_perfect_reader_scores_all_of_ruler_and_another_none():
    prepared = ready("ruler", 1200, lengths=[1200, 1500], ruler={"tasks": TASKS, "samples": 2})
    result = run_prepared(prepared, saying(prepared), versus={"mute": Reader(lambda ids: 0)})["ruler"]
    ours, mute = result["rows"]
    assert ours["value"] == 1.0 and ours["interval"] == [1.0, 1.0] and mute["value"] == 0.0
    assert ours["n"] == 16 and ours["truncated"] == 0 and len(ours["cells"]) == 8
    assert all(sample["tokens"] + sample["room"] <= 1500 for sample in ours["samples"])
    assert mute["first_minus_this"] == {
        "value": 1.0,
        "interval": [1.0, 1.0],
        "p": pytest.approx(1e-4, abs=1e-3),
        "n": 16,
    }
    assert "mute, paired: +100.0%" in pairs(result)[0]
    assert lines(*table(result))[1].split() == ["model", "100.0%", "100.0%", "to", "100.0%", "4", "16", "0"]
    assert any(line.split()[:2] == ["vt", "100%"] for line in details(result))


def test_ruler_result_says_what_it_was_measured_with(tmp_path):
    options = {"ruler": {"tasks": ["vt"], "samples": 1}, "seed": 3, "out": tmp_path}
    result = run_eval(tiny_llama(max_positions=2000), TOKENIZER, "ruler", context=900, **options)["ruler"]
    assert json.loads((tmp_path / "ruler.json").read_text()) == json.loads(json.dumps(result))
    assert result["options"]["seed"] == 3 and result["options"]["own"]["tasks"] == ("vt",)
    assert result["data"]["names"] == ["book.txt"] and re.fullmatch("[0-9a-f]{16}", result["data"]["hash"])
    assert result["environment"]["packages"]["torch"] and result["rows"][0]["samples"][0]["answers"]


def test_questions_are_left_out_with_a_line_when_no_file_is_named():
    prepared = ready("ruler", 3000, ruler={"samples": 1})
    assert len({sample.task for sample in prepared.materials["ruler"].items}) == 11
    assert "ruler: task qa_1 needs questions: --set ruler.squad=FILE (get one: curl" in prepared.notes[0]


def test_a_reader_with_a_window_recalls_within_it_alone():
    prepared = ready("ar", 600, window=100, ar={"samples": 6, "queries": 12})
    result = run_prepared(prepared, repeating(), versus={"near": repeating(100)})["ar"]
    whole, near = result["rows"]
    assert whole["value"] == 1.0 and whole["n"] == 72
    assert [cell["distance"] for cell in near["cells"]] == ["0-100", "100-200", "200-400", "400-599"]
    assert [cell["value"] for cell in near["cells"]] == [1.0, 0.0, 0.0, 0.0]
    gap = near["first_minus_this"]
    assert near["value"] == 0.25 and gap["value"] == 0.75 and gap["n"] == 72
    assert gap["p"] == pytest.approx(2 / 2**6, abs=0.01)  # six texts, whose queries are not independent
    assert all(cell["value"] == (cell["distance"] == "0-100") for cell in near["cells"])
    assert {sample["nll"] > 0 for sample in near["samples"]} == {True}


def test_queries_of_one_sequence_are_drawn_together():
    """One text says nothing about how much texts differ, however many queries it holds."""
    row = run_prepared(ready("ar", 600, window=100, ar={"samples": 1}), repeating(100))["ar"]["rows"][0]
    assert row["n"] == 16 and row["interval"] is None and all(cell["interval"] is None for cell in row["cells"])
    assert lines(*table({"suite": "ar", "rows": [row]}))[1].split()[2] == "-"
    two = run_prepared(ready("ar", 600, window=100, ar={"samples": 2}), repeating(100))["ar"]["rows"][0]
    assert two["interval"] is not None


def test_distances_of_recall_can_be_chosen():
    prepared = ready("ar", 300, window=50, ar={"samples": 3, "distances": [12, 200]})
    row = run_prepared(prepared, repeating())["ar"]["rows"][0]
    assert sorted(sample["distance"] for sample in row["samples"]) == [12] * 3 + [200] * 3


def facts(tmp_path, count=12):
    records = [{"text": f"The key of door {i} is {i}{i}9. " + "Nothing else. " * 30 + f"The key of door {i} is",
                "value": f"{i}{i}9"} for i in range(count)]  # fmt: skip
    path = tmp_path / "fda.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


def test_recall_from_files_reads_beyond_the_window(tmp_path):
    prepared = ready("recall", 700, window=100, limit=5, recall={"fda": facts(tmp_path)})
    result = run_prepared(prepared, saying(prepared), versus={"short": Reader(lambda ids: 0, 100)})["recall"]
    ours, short = result["rows"]
    assert ours["value"] == 1.0 and ours["n"] == 5 and all(s["distance"] > 400 for s in ours["samples"])
    assert short["value"] is None and short["note"] == "beyond the 100 positions of the base model"
    assert "first_minus_this" not in short and pairs(result) == []
    assert details(result)[2].split()[:2] == ["fda", "100%"]


def test_a_stopped_run_goes_on_from_the_samples_it_has(tmp_path):
    calls = []

    def counting(ids):
        calls.append(len(ids))
        if len(calls) > 1500:
            raise KeyboardInterrupt
        return 0

    options = {"ruler": {"tasks": ["niah_single_1"], "samples": 8, "answer_tokens": 8}}
    prepared = ready("ruler", 560, **options)
    with pytest.raises(KeyboardInterrupt):
        run_prepared(prepared, Reader(counting), out=tmp_path)
    seen = []
    whole = run_prepared(prepared, Reader(lambda ids: 0), out=tmp_path, progress=lambda *a: seen.append(a))
    assert whole["ruler"]["rows"][0]["n"] == 8 and seen[-1] == ("ruler model", 8, 8)
    seen.clear()
    (tmp_path / "ruler.json").unlink()
    fewer = ready("ruler", 560, limit=4, **options)
    run_prepared(fewer, Reader(counting), out=tmp_path, progress=lambda *a: seen.append(a))
    assert seen == [("ruler model", 4, 4)]


def test_needles_in_repeated_filler_need_no_text():
    row = run_eval(tiny_llama(), TOKENIZER, "niah", context=300, limit=2, haystack="filler")["niah"]["rows"][0]
    assert row["n"] == 2


def test_perplexity_by_position_and_by_distance(tmp_path):
    (tmp_path / "book.txt").write_text("it was the best of times, it was the worst of times, " * 12)
    result = run_eval(tiny_llama(), TOKENIZER, "ppl", tmp_path / "book.txt", 128, window=16, cache_dir=tmp_path)["ppl"]
    row = result["rows"][0]
    names = ["0-16", "16-32", "32-64", "64-127"]
    assert [part["name"] for part in row["by_position"]] == [f"position {name}" for name in names]
    assert [part["tokens"] for part in row["by_position"]] == [n * row["n"] for n in (16, 16, 32, 63)]
    assert {part["name"] for part in row["by_distance"]} <= {f"last seen {name}" for name in ["never", *names]}
    assert sum(part["tokens"] for part in row["by_distance"]) == row["groups"]["all"]["tokens"]
    beyond = sum(part["tokens"] for part in row["by_distance"] if part["name"] in [f"last seen {n}" for n in names[1:]])
    assert beyond == row["groups"]["cross_window"]["tokens"]
    assert any("last seen never" in line for line in details(result))


@pytest.mark.parametrize(
    ("suite", "options", "message"),
    [
        ("rular", {}, "suite 'rular' is unknown; did you mean 'ruler'"),
        ("ruler", {"ruler": {"task": 1}}, "'ruler.task' is unknown; did you mean 'tasks'"),
        ("ruler", {"ruler": {"tasks": ["vtt"]}}, "ruler.tasks: 'vtt' is unknown"),
        ("ruler", {"ruler": {"tasks": ["cwe", "qa_1"]}}, "qa_1 needs questions: --set ruler.squad=FILE"),
        ("ruler", {"ruler": {"squad": "none.json"}}, "ruler.squad: data none.json does not exist; get one: curl"),
        ("ruler", {"context": 100}, "ruler length is 100; the shortest is 256 tokens"),
        ("ruler", {"context": 300, "ruler": {"tasks": ["vt"]}}, "task vt needs at least [0-9]+ tokens"),
        ("ruler", {"ruler": {"tasks": ["vt"], "answer_tokens": 5}}, "vt: the answer takes 30 tokens, .* lets 5"),
        ("ruler", {"ruler": {"samples": 0}}, "ruler.samples is 0"),
        ("ppl", {"ppl": {"kind": 1}}, "'ppl.kind': suite ppl has no options of its own; give kind alone"),
        ("ar", {"lengths": [float("inf")]}, r"lengths is \[inf\]; give a list of"),
        ("ar", {"ar": {"distances": [float("nan")]}}, r"ar.distances is \[nan\]; give a list of"),
        ("ar", {"context": 20}, "length 20 is too short for 16 queries; it needs 128"),
        ("ar", {"ar": {"distances": [0]}}, "ar.distances is .0.; give a list of whole numbers"),
        ("recall", {}, "needs one of --set recall.squad=FILE, .*; get one: hf download hazyresearch/based-fda"),
        (
            "recall",
            {"recall": {"swde": "x.jsonl"}},
            "x.jsonl does not exist; get one: hf download hazyresearch/based-swde",
        ),
        ("ar", {"ruler": {"samples": 1}}, "options of 'ruler' are given, which is not run"),
        ("niah", {"haystack": "fill"}, "haystack is 'fill'; did you mean 'filler'"),
        ("niah", {}, "suite niah needs --data: a text file or a folder of them, or --set haystack=filler"),
    ],
)
def test_bad_input(suite, options, message):
    with pytest.raises(UserError, match=message):
        run_eval(tiny_llama(), TOKENIZER, suite, **{"context": 2000, **options})


WRONG = (None, True, 7, 1.5, "yess", [], ["yess"], [None], {}, {"yess": 5})
OWN = {
    "ruler": {"tasks": ["niah_single_1"], "samples": 1}, "ar": {"samples": 1}, "recall": {}, "commonsense": {},
    "mmlu": {}, "mmlu-cloze": {},
}  # fmt: skip
FIELDS = [
    (suite, field.name)
    for suite, kind in (
        ("ruler", RulerOptions), ("ar", ArOptions), ("recall", RecallOptions), ("commonsense", CommonsenseOptions),
        ("mmlu", MmluOptions), ("mmlu-cloze", MmluOptions),
    )
    for field in fields(kind)
]  # fmt: skip


@pytest.mark.parametrize(("suite", "name"), FIELDS, ids=[f"{suite}.{name}" for suite, name in FIELDS])
def test_a_value_of_the_wrong_type_is_named_or_fits(suite, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in WRONG:
        try:
            ready(suite, 400, **{suite: OWN[suite] | {name: value}})
        except UserError as error:
            assert str(error).count("\n") == 0


@pytest.mark.parametrize("name", [field.name for field in fields(EvalOptions) if field.name != "own"])
def test_a_common_option_of_the_wrong_type_is_named_or_fits(name):
    fits = [value for value in WRONG if not isinstance(value, dict) and _fits(name, value)]
    optional = {"limit", "window", "lengths"}
    wanted = {"tails": [True], "templates": []}.get(name, [None] * (name in optional) + [7] * (name in COUNTS))
    assert [value for value in fits if value is not False] == wanted


COUNTS = ("context", "limit", "seed", "window", "needles", "batch", "block")


def _fits(name, value):
    try:
        EvalOptions.of(**{name: value})
    except UserError as error:
        assert name.rstrip("s") in str(error)
        return False
    return True


@pytest.mark.parametrize(("options", "message"), [
    ({"tails": "yess"}, "tails is 'yess'; give true or false"),
    ({"needles": None}, "needles is None; give a whole number"),
    ({"lengths": ["x"]}, r"lengths is \['x'\]; give a list of whole numbers or null"),
    ({"templates": []}, "needle templates are an empty list; allowed: .*heldout"),
    ({"ruler": {"samples": None}}, "ruler.samples is None; give a whole number"),
    ({"ruler": {"squad": 5}}, "ruler.squad is 5; give text or null"),
    ({"commonsense": {"data": {"piqa": 5}}}, "commonsense.data is {'piqa': 5}; give text or keys and values"),
])  # fmt: skip
def test_how_a_wrong_type_is_told(options, message):
    with pytest.raises(UserError, match=message):
        ready(next((name for name in options if name in OWN), "ppl"), 400, **options)


def test_a_context_beyond_the_model_is_an_error_before_it_is_loaded():
    with pytest.raises(UserError, match="suite ar: 2,000 tokens are beyond the model, which reads 512 at most"):
        prepare("ar", TOKENIZER, EvalOptions.of(context=2000), positions=512)


def test_text_that_no_suite_reads_is_an_error():
    with pytest.raises(UserError, match="--data is read by no suite of ar"):
        prepare("ar", TOKENIZER, EvalOptions.of(context=2000), "text.txt")


def test_every_entry_of_the_table_is_whole():
    for name, suite in SUITES.items():
        assert name.islower() and suite.heads and callable(suite.prepare) and callable(suite.run)
        assert all(isinstance(length, int) for length in suite.lengths(EvalOptions.of(context=300)))


def samples(*rows):
    """A suite's row of samples (cell, text, score)."""
    made = [{"id": str(at), "cell": cell, "text": text, "score": score} for at, (cell, text, score) in enumerate(rows)]
    return sampled_row([{"id": cell} for cell in dict.fromkeys(cell for cell, _, _ in rows)], made, 0)


@given(st.data())
def test_a_difference_is_that_of_the_two_values(data):
    places = data.draw(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyzw")), min_size=1, max_size=20))
    scores = st.lists(st.floats(0, 1), min_size=len(places), max_size=len(places))
    first, other = (samples(*((*at, s) for at, s in zip(places, data.draw(scores), strict=True))) for _ in "12")
    gap = compare_samples(first, other, 0)["first_minus_this"]
    assert gap["value"] == pytest.approx(first["value"] - other["value"]) and gap["n"] == len(places)
    low, high = gap["interval"] or (-1, 1)
    assert -1 <= low <= high <= 1 and 0 < gap["p"] <= 1


def test_a_value_named_twice_is_asked_once():
    once, twice = (ready("ar", 600, window=100, lengths=lengths, ar={"samples": 2}) for lengths in ([256], [256, 256]))
    assert len(once.materials["ar"].items) == len(twice.materials["ar"].items) == 2


def whole_texts(cells, texts=8, right=4):
    """Samples of texts that are right in all cells or in none: what they say of their number is all there is."""
    return [
        {"id": f"{text}/{cell}", "text": text, "cell": cell, "score": float(text < right)}
        for cell in cells
        for text in range(texts)
    ]


@pytest.mark.parametrize("cells", ["a", "ab", "abcdef"])
def test_texts_with_samples_in_several_cells_are_drawn_whole(cells):
    """More cells of the same texts say no more of how texts differ, so the interval stays that of the texts alone."""
    samples = whole_texts(cells)
    alone = bootstrap_ratio(np.array([1.0] * 4 + [0.0] * 4), np.ones(8))
    row = sampled_row([{"id": cell} for cell in cells], samples, 0)
    none = {"samples": [sample | {"score": 0.0} for sample in samples]}
    gap = compare_samples(row, none, 0)["first_minus_this"]
    assert row["value"] == gap["value"] == 0.5 and row["interval"] == gap["interval"] == alone
    assert gap["p"] == pytest.approx(2 / 2**4, abs=0.02)


def test_cells_without_a_text_in_common_are_drawn_apart():
    samples = [sample | {"text": f"{sample['id']}"} for sample in whole_texts("abcdef")]
    low, high = sampled_row([{"id": cell} for cell in "abcdef"], samples, 0)["interval"]
    assert 0.3 < low < 0.5 < high < 0.7


def test_a_cell_whose_texts_are_not_drawn_is_left_out_of_the_draw():
    samples = [{"id": str(n), "text": n % 3, "cell": "ab"[n == 3], "score": 1.0} for n in range(4)]
    assert sampled_row([{"id": cell} for cell in "ab"], samples, 0)["interval"] == [1.0, 1.0]


@pytest.mark.parametrize("depths", [(0.1,), (0.1, 0.3, 0.5, 0.7, 0.9)])
def test_needles_in_one_text_are_no_evidence_of_their_own(depths):
    """Pairs flip by text and are drawn by text, and so are digits: four texts, of which two hide nothing."""

    def row(found):
        answers = {d: [found[text_of(d, s)] for s in range(4)] for d in depths}
        given = {d: [{"exact": f, "right": 7 * f, "counted": 7, "template": "t"} for f in answers[d]] for d in depths}
        return niah_summary([{"length": 300, "depth": d, "n": 4, "answers": given[d]} for d in depths])

    half, none = row([1, 0, 1, 0]), row([0, 0, 0, 0])
    alone = bootstrap_ratio(np.array([1.0, 0.0, 1.0, 0.0]), np.ones(4))
    assert half["digits"] == {"value": 0.5, "interval": alone}
    gap = compare_niah(half, none, 0)["first_minus_this"]
    assert gap["value"] == 0.5 and gap["n"] == 4 * len(depths) and gap["interval"] == alone
    assert gap["p"] == pytest.approx(2 / 2**2, abs=0.05)
