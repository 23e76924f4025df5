"""What a step trains on: mixed rows, weighted targets, rows without most of their window."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_resume import final_hash, go, losses
from tiny import PLAN, tiny_hybrid, tiny_recipe, tiny_store

from anchorlm.core import UserError
from anchorlm.data import batches
from anchorlm.settings import DataSettings, Recipe, Stage2Settings, load_recipe
from anchorlm.train.checkpoint import checkpoints
from anchorlm.train.losses import CrossEntropy, View, ratio
from anchorlm.train.rows import crossing, draw_narrow, mixture, narrowed, weighted
from anchorlm.train.stages import enter_stage
from anchorlm.train.step import backward
from small import char_tokenizer

EVERYTHING = {
    "data": {"length": 400, "mix": {"recall": 0.4, "needle": 0.2}, "mix_answer_weight": 3.0},
    "stage1": {"cross_window_weight": 2.0, "window_dropout": 0.5},
    "stage2": {"cross_window_weight": 4.0, "window_dropout": 0.5, "narrow_window": 0.1},
}
STORE = tiny_store(documents=60)


def mixed(**mix):
    return mixture(DataSettings(length=400, mix=mix), STORE, char_tokenizer())


def test_the_mix_follows_its_shares():
    rows = mixed(recall=0.25, needle=0.5)
    taken = next(batches(rows, 400, 400, seed=0)).cursor.taken
    assert [source.name.partition(":")[0] for source in rows.sources] == ["packed", "recall", "needles"]
    assert np.allclose(np.array(taken) / 400, [0.25, 0.25, 0.5], atol=0.08)


def test_a_whole_share_leaves_no_text_rows():
    assert [source.name.partition(":")[0] for source in mixed(recall=1.0).sources] == ["recall"]


def test_no_mix_is_the_text_alone_as_before():
    plain = [next(batches(rows, 400, 3, seed=1)) for rows in (mixed(), STORE)]
    assert torch.equal(plain[0].input_ids, plain[1].input_ids) and plain[0].cursor == plain[1].cursor
    assert plain[0].weights is None


def test_answers_of_generated_rows_alone_have_the_weight():
    rows = mixture(DataSettings(length=400, mix={"recall": 0.5}, mix_answer_weight=3.0), STORE, char_tokenizer())
    batch = next(batches(rows, 400, 40, seed=0))
    heavy = (batch.weights == 3).any(1)
    assert 10 < heavy.sum() < 30 and set(batch.weights.unique().tolist()) == {1.0, 3.0}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.mix.recal=0.2", ["data.mix.recal", "did you mean 'recall'"]),
        ("data.mix.recall=-0.1", ["data.mix.recall", "-0.1", "greater than or equal to 0"]),
        ("data.mix={recall: 0.7, needle: 0.6}", ["data.mix", "add up to 1.3", "at most 1"]),
        ("data.mix_answer_weight=0", ["data.mix_answer_weight", "greater than 0"]),
        ("data.mix_end_weight=0", ["data.mix_end_weight", "greater than 0"]),
        ("stage2.window_dropout=1.5", ["stage2.window_dropout", "less than or equal to 1"]),
        ("stage1.cross_window_weight=-1", ["stage1.cross_window_weight", "greater than 0"]),
    ],
)
def test_mistakes_name_the_key(override, words):
    with pytest.raises(UserError) as caught:
        load_recipe("anchor", [override])
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def random_view(rows=3, length=40, seed=0):
    """Few different tokens, documents inside rows, padding in the middle."""
    torch.manual_seed(seed)
    mask, starts = torch.rand(rows, length) > 0.1, torch.rand(rows, length) > 0.95
    return View(torch.randint(0, 3, (rows, length)), mask, starts & mask)


def test_cross_window_targets_of_a_padded_packed_view_equal_a_plain_loop():
    view = random_view()
    found = crossing(view, 5)
    for row in range(3):
        latest, document, place, previous = {}, 0, 0, None
        for t in range(40):
            if not view.mask[row, t]:
                assert not found[row, t]
                continue
            document += int(view.starts[row, t])
            token = int(view.input_ids[row, t])
            expected = False
            if previous is not None and previous[0] == document:
                bigram = (document, previous[1], token)
                expected = bigram in latest and place - latest[bigram] > 5
                latest[bigram] = place
            assert bool(found[row, t]) == expected
            previous, place = (document, token), place + 1
    assert 5 < found.sum() < 100


def test_weighted_cross_entropy_equals_a_plain_loop():
    torch.manual_seed(0)
    stage = Stage2Settings(cross_window_weight=3.0)
    view, head = random_view(), torch.nn.Linear(4, 9, bias=False).double()
    view = weighted(replace(view, weights=1 + torch.rand(3, 40)), stage, 5)
    view.hidden = torch.randn(3, 40, 4, dtype=torch.float64)
    found, total, weights = crossing(view, 5), 0.0, 0.0
    assert float(view.weights.max()) > 3
    for row in range(3):
        before = None
        for t in range(40):
            if not view.mask[row, t]:
                continue
            if before is not None and not view.starts[row, t]:
                weight = float(view.weights[row, t])
                assert weight >= 3.0 or not found[row, t]
                logits = head(view.hidden[row, before])
                total -= weight * float(torch.log_softmax(logits, -1)[view.input_ids[row, t]].detach())
                weights += weight
            before = t
    term = CrossEntropy(head)
    value = float(ratio(term.sums(view), term.totals(view)).detach())
    assert value == pytest.approx(total / weights, rel=1e-6)


def test_weighted_gradients_are_those_of_the_plain_formula():
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(4, 9, bias=False).double(), torch.randn(1, 12, 4, dtype=torch.float64)
    hidden.requires_grad_()
    ids, counts = torch.randint(0, 9, (1, 12)), torch.rand(1, 12, dtype=torch.float64) * 5
    view = View(ids, torch.ones(1, 12, dtype=torch.bool), hidden=hidden, weights=counts)
    losses = torch.nn.functional.cross_entropy(head(hidden[0, :-1]), ids[0, 1:], reduction="none")
    plain = (losses * counts[0, 1:]).sum()
    found = CrossEntropy(head).sums(view).sum()
    torch.testing.assert_close(found, plain)
    wanted = (hidden, head.weight)
    for a, b in zip(torch.autograd.grad(2 * found, wanted), torch.autograd.grad(2 * plain, wanted), strict=True):
        torch.testing.assert_close(a, b)


def run_backward(model, views):
    stage = enter_stage(model, "stage1", tiny_recipe())
    figures = backward(model, views, stage, lambda parts, view: None)
    grads = {name: parameter.grad.clone() for name, parameter in stage.parameters.items()}
    model.zero_grad(set_to_none=True)
    return figures, grads


def cut_view(view, rows):
    return View(view.input_ids[rows], view.mask[rows], view.starts[rows], weights=view.weights[rows], plan=view.plan)


def test_no_split_of_a_weighted_batch_changes_losses_or_gradients():
    """Together, or row by row in batches that are accumulated; rows carry different total weights."""
    model = tiny_hybrid().double()
    view = weighted(random_view(3, 60), Stage2Settings(cross_window_weight=3.0), 8)
    together, grads = run_backward(model, [view])
    alone, summed = run_backward(model, [cut_view(view, [row]) for row in range(3)])
    assert together == pytest.approx(alone, rel=1e-6)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, summed[name], rtol=1e-5, atol=1e-9, msg=name)


def test_padding_on_either_side_changes_no_weighted_loss():
    model = tiny_hybrid().double()
    plain = random_view(1, 50)
    plain.mask[:] = True
    padded = [torch.nn.functional.pad(x, (7, 4)) for x in (plain.input_ids, plain.mask, plain.starts)]
    stage = Stage2Settings(cross_window_weight=3.0)
    views = [weighted(view, stage, 8) for view in (plain, View(*padded))]
    assert float(views[0].weights.sum()) > 50
    figures = [run_backward(model, [view])[0] for view in views]
    assert figures[0] == pytest.approx(figures[1], rel=1e-9)


def test_a_narrow_row_is_the_row_under_a_narrower_plan():
    model = tiny_hybrid().double()
    view = weighted(random_view(3, 60), Stage2Settings(cross_window_weight=3.0), 8)
    kept, cut = narrowed(view, [False, True, False], model.plan, 0.25)
    assert torch.equal(kept.input_ids, view.input_ids[[0, 2]]) and torch.equal(cut.weights, view.weights[[1]])
    assert {reach.window for reach in cut.plan.layers} == {2} and kept.plan is None
    assert cut.plan.slots == model.plan.slots
    narrow = tiny_hybrid({**PLAN, "attention": {**PLAN["attention"], "window": 2}, "slots": with_gap()}).double()
    same = run_backward(narrow, [replace(cut, plan=None)])
    found = run_backward(model, [cut])
    assert found[0]["ce"] == pytest.approx(same[0]["ce"], rel=1e-12)
    assert found[0]["ce"] != pytest.approx(run_backward(model, [replace(cut, plan=None)])[0]["ce"], rel=1e-4)
    for name, grad in found[1].items():
        torch.testing.assert_close(grad, same[1][name], msg=name)


def with_gap():
    return {name: {**slot, "gap": True} for name, slot in PLAN["slots"].items()}


def test_no_row_or_every_row_narrow_is_one_view():
    view, plan = random_view(), tiny_hybrid().plan
    assert narrowed(view, [False] * 3, plan, 0.25) == [view]
    (only,) = narrowed(view, [True] * 3, plan, 0.0)
    assert only.plan.layers[0].window == 1 and len(only.input_ids) == 3


def test_narrow_rows_are_drawn_from_seed_and_step():
    stage = Stage2Settings(window_dropout=0.3)
    drawn = [draw_narrow(stage, 5, step, 100) for step in range(1, 20)]
    assert drawn == [draw_narrow(stage, 5, step, 100) for step in range(1, 20)]
    assert drawn[0] != drawn[1] and drawn[0] != draw_narrow(stage, 6, 1, 100)
    assert 0.25 < np.mean(drawn) < 0.35
    assert draw_narrow(Stage2Settings(), 5, 1, 3) == [False] * 3


def test_a_plan_without_windows_has_no_cross_window_weight(tmp_path):
    recipe = tiny_recipe(stage1={"steps": 0}, stage2={"cross_window_weight": 2.0})
    with pytest.raises(UserError, match=r"stage2.cross_window_weight is 2.0 but no layer of the plan has a window"):
        go(tmp_path / "run", recipe, plan={"attention": {"kind": "full"}})
    assert not (tmp_path / "run").exists()


def test_a_plan_without_windows_has_none_to_narrow(tmp_path):
    recipe = tiny_recipe(stage1={"steps": 0}, stage2={"window_dropout": 0.5})
    with pytest.raises(UserError, match=r"stage2.window_dropout is 0.5 but no layer of the plan has a window"):
        go(tmp_path / "run", recipe, plan={"attention": {"kind": "full"}})
    assert not (tmp_path / "run").exists()


def test_resume_with_every_option_on_is_exact(tmp_path):
    recipe = tiny_recipe(**EVERYTHING, keep_last=9)
    go(tmp_path / "straight", recipe, store=STORE)
    go(tmp_path / "run", recipe, store=STORE)
    for name in (4, 5, 6):
        for path in checkpoints(tmp_path / "run" / "checkpoints"):
            if path.name == f"step-{name:08d}":
                shutil.rmtree(path)
    (tmp_path / "run" / "config.json").unlink()
    assert "resuming at step 3 of 6" in go(tmp_path / "run", recipe, store=STORE)
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")
    assert final_hash(tmp_path / "run") == final_hash(tmp_path / "straight")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": {"length": 400, "mix": {"recall": 0.3}}}, ["recipe.data.mix.recall", "0.2", "0.3"]),
        ({"data": {"length": 400, "mix": {"recall": 0.2}, "mix_answer_weight": 2.0}}, ["mix_answer_weight", "1.0"]),
        ({"store": tiny_store("other words", documents=60)}, ["data.texts"]),
    ],
)
def test_another_mix_or_text_is_another_run(tmp_path, change, words):
    def start(**new):
        store = new.pop("store", STORE)
        stages = {"stage1": {"steps": 1}, "stage2": {"steps": 0}}
        go(
            tmp_path / "run",
            tiny_recipe(**{"data": {"length": 400, "mix": {"recall": 0.2}}, **stages, **new}),
            store=store,
        )

    start()
    with pytest.raises(UserError) as caught:
        start(**change)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_from_before_a_setting_existed_goes_on_at_its_default():
    from anchorlm.train.folder import check_identity

    wanted = {"recipe": Recipe().model_dump(mode="json")}
    stored = {"recipe": {**wanted["recipe"], "data": {"length": 1024}}}
    check_identity(stored, wanted, "here")
    wanted["recipe"]["data"]["mix"]["recall"] = 0.2
    with pytest.raises(UserError, match=r"recipe.data.mix.recall was 0.0, now 0.2"):
        check_identity(stored, wanted, "here")
