"""Losses beside cross-entropy, whole stages built of them, and learning rates by kind."""

import io
import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from test_resume import final_hash, go, losses
from test_train import changed, first_view, snapshot
from tiny import PLAN, tiny_hybrid, tiny_recipe, tiny_store

from anchorlm.core import UserError
from anchorlm.hf.model import Captures
from anchorlm.plan import Plan
from anchorlm.settings import load_recipe
from anchorlm.train import train
from anchorlm.train.checkpoint import checkpoints
from anchorlm.train.distill import Distillation, linear_divergence
from anchorlm.train.groups import make_groups
from anchorlm.train.losses import Transfer, View, next_token_places
from anchorlm.train.stages import enter_stage
from anchorlm.train.step import _study, _teach, backward, evaluate
from small import char_tokenizer

FED = {"mse_inputs": "teacher"}


@pytest.mark.parametrize("count", [0, 1, 7, 9])
@pytest.mark.parametrize("heat", [1.0, 2.5])
def test_chunked_divergence_equals_the_plain_one(count, heat):
    torch.manual_seed(count)
    student, teacher = torch.randn(2, count, 6, dtype=torch.float64)
    weight, counts = torch.randn(11, 6, dtype=torch.float64), torch.rand(count, dtype=torch.float64)
    student.requires_grad_()
    ours, theirs = ((x @ weight.T / heat).log_softmax(-1) for x in (student, teacher))
    plain = (counts[:, None] * F.kl_div(ours, theirs, reduction="none", log_target=True)).sum()
    chunked = linear_divergence(student, teacher, weight, heat, elements=4 * 2 * 11, counts=counts)
    torch.testing.assert_close(chunked, plain)
    (a,), (b,) = (torch.autograd.grad(3 * x, student) for x in (chunked, plain))
    torch.testing.assert_close(a, b)


def test_divergence_of_the_teacher_from_itself_is_zero_and_else_positive():
    hidden, weight = torch.randn(5, 6), torch.randn(11, 6)
    assert abs(float(linear_divergence(hidden, hidden, weight))) < 1e-6
    assert float(linear_divergence(torch.randn(5, 6), hidden, weight)) > 0


def logits_of(model, view, plan):
    hidden = model.hidden(view.input_ids, attention_mask=view.mask, document_starts=view.starts, plan=plan)
    return model.backbone.lm_head(hidden).flatten(0, 1)


@torch.no_grad()
def test_the_divergence_of_a_view_is_that_of_the_logits():
    model, view = tiny_hybrid().double(), first_view()
    stage = enter_stage(model, "stage1", tiny_recipe(stage1={"w_kl": 1.0, "temperature": 2.0, "w_mse": 0.0}))
    figures = evaluate(model, [view], stage)
    source, _ = next_token_places(view.mask, view.starts)
    ours, theirs = ((logits_of(model, view, p)[source] / 2).log_softmax(-1) for p in (model.plan, model.plan.teacher()))
    plain = 4 * F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
    assert figures["kl"] == pytest.approx(float(plain), rel=1e-6)
    assert "kl_without_slots" not in figures and figures["ce_without_slots"] > 0


def split(view):
    return [View(view.input_ids[[r]], view.mask[[r]], view.starts[[r]]) for r in range(len(view.mask))]


@pytest.mark.parametrize("first", [{"w_kl": 0.5}, FED, {**FED, "w_ce": 0.0}, {**FED, "w_kl": 0.5, "w_ce": 0.0}])
def test_accumulation_changes_no_loss_or_gradient(first):
    found = []
    for parts in (lambda view: [view], split):
        model = tiny_hybrid().double()
        stage = enter_stage(model, "stage1", tiny_recipe(stage1=first))
        figures = backward(model, parts(first_view()), stage, lambda parts, view: None)
        found.append((figures, {n: p.grad for n, p in stage.parameters.items()}))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, grad in found[0][1].items():
        torch.testing.assert_close(grad, found[1][1][name], rtol=1e-5, atol=1e-9, msg=name)


@torch.no_grad()
def test_fed_transfer_is_each_layer_beside_the_teacher():
    """Against one layer at a time, changed in a model whose other layers are the teacher's."""
    model, view = tiny_hybrid({"attention": PLAN["attention"]}).double(), first_view()
    teacher, errors = model.plan.teacher(), []
    wanted = outputs_under(model, view, teacher)
    for layer in range(4):
        reaches = [*teacher.layers[:layer], model.plan.layers[layer], *teacher.layers[layer + 1 :]]
        found = outputs_under(model, view, Plan(tuple(reaches)))
        errors.append(float((found[layer] - wanted[layer]).square().sum() / wanted[layer].square().sum()))
    term = Transfer((0, 1, 2, 3), inputs=(0, 1, 2, 3))
    _teach(model, view, term.needs)
    _study(model, view, term.student, [term], model.plan, False)
    assert (term.sums(view) / term.totals(view)).tolist() == pytest.approx(errors, rel=1e-9) and min(errors) > 0


def outputs_under(model, view, plan):
    captures = Captures()
    model.hidden(view.input_ids, document_starts=view.starts, plan=plan, captures=captures)
    return captures.outputs


def test_cross_entropy_beside_fed_transfer_is_the_free_one():
    figures = {}
    for inputs in ("student", "teacher"):
        model = tiny_hybrid().double()
        stage = enter_stage(model, "stage1", tiny_recipe(stage1={"mse_inputs": inputs}))
        figures[inputs] = backward(model, [first_view()], stage, lambda parts, view: None)
    assert figures["student"]["ce"] == figures["teacher"]["ce"]
    assert figures["student"]["mse"] != figures["teacher"]["mse"]


def test_without_cross_entropy_the_student_never_runs_freely(monkeypatch):
    model = tiny_hybrid().double()
    stage = enter_stage(model, "stage1", tiny_recipe(stage1={**FED, "w_ce": 0.0}))
    plans, plain = [], model.hidden
    monkeypatch.setattr(model, "hidden", lambda *a, **o: plans.append(o["plan"]) or plain(*a, **o))
    backward(model, [first_view()], stage, lambda parts, view: None)
    assert plans == [model.plan.teacher()]


@pytest.mark.parametrize("name", ["transfer", "distill"])
def test_recipes_lower_what_they_minimise_and_resume_exactly(tmp_path, name):
    recipe = short(name)
    go(tmp_path / "a", recipe)
    go(tmp_path / "b", recipe)
    (tmp_path / "b" / "config.json").unlink()
    for path in checkpoints(tmp_path / "b" / "checkpoints")[:2]:
        shutil.rmtree(path)
    assert "resuming at step" in go(tmp_path / "b", recipe)
    assert losses(tmp_path / "a") == losses(tmp_path / "b") and final_hash(tmp_path / "a") == final_hash(tmp_path / "b")


def short(name):
    steps = {"transfer": ["stage1.steps=6"], "distill": ["stage1.steps=3", "stage2.steps=3"]}[name]
    rest = ["data.length=32", "stage1.warmup=1", "stage2.lora.rank=2", "save_every=2", "keep_last=9"]
    return load_recipe(name, [*steps, *rest])


@pytest.mark.parametrize("plan", [{"attention": {"kind": "full"}}, {"attention": PLAN["attention"]}, PLAN])
def test_the_lora_recipe_trains_adapters_alone(tmp_path, plan):
    model = tiny_hybrid(plan)
    before = {name: p.detach().clone() for name, p in model.memory_parameters().items()}
    console = Console(file=io.StringIO(), width=200)
    recipe = load_recipe("lora", ["stage2.steps=2", "data.length=64", "calibrate=false"])
    train(model, char_tokenizer(), recipe, tiny_store(), tmp_path / "run", console=console)
    assert not changed(before, snapshot(model))
    assert '"stage": "stage2"' in (tmp_path / "run" / "metrics.jsonl").read_text()
    listed = json.loads((tmp_path / "run" / "trainable-stage2.json").read_text())
    assert listed and all(".lora_" in name for name in listed)
    assert ("train_memory is false" in console.file.getvalue()) == ("slots" in plan)


def test_gates_and_maps_have_their_own_rates():
    memory = dict(tiny_hybrid().memory_parameters())
    plain, own = tiny_recipe(), tiny_recipe(stage1={"gate_lr_multiplier": 10.0, "map_lr_multiplier": 0.5})
    names = [group.name for group in make_groups(memory, {}, plain.stage1)]
    assert names == ["slots (writers)", "gates and maps (readers)"]
    groups = {group.name: group for group in make_groups(memory, {}, own.stage1)}
    assert groups["gates"].lr == pytest.approx(1e-2) and groups["read maps"].lr == pytest.approx(5e-4)
    assert all(".gate_" in name for name in groups["gates"].parameters) and len(groups["gates"].parameters) == 8
    assert all(".map." in name for name in groups["read maps"].parameters)
    assert groups["readers"].lr == groups["slots (writers)"].lr == pytest.approx(5e-3)
    everything = [name for group in groups.values() for name in group.parameters]
    assert sorted(everything) == sorted(memory)


def test_a_stage_without_any_loss_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"stage2.w_ce.* are all 0: nothing to minimise"):
        go(tmp_path / "run", tiny_recipe(stage2={"w_ce": 0.0}))


@torch.no_grad()
def test_a_weighted_divergence_is_a_weighted_mean():
    torch.manual_seed(0)
    head = torch.nn.Linear(4, 9, bias=False).double()
    hidden, aim = torch.randn(2, 1, 8, 4, dtype=torch.float64)
    view = View(torch.zeros(1, 8, dtype=torch.long), torch.ones(1, 8, dtype=torch.bool), hidden=hidden, aim=aim)
    view.weights = torch.tensor([[9.0, 1, 1, 5, 1, 1, 1, 1]])
    term = Distillation(head)
    ours, theirs = (head(x[0, :-1]).log_softmax(-1) for x in (hidden, aim))
    each = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
    plain = (each * view.weights[0, 1:]).sum() / view.weights[0, 1:].sum()
    assert float(term.sums(view) / term.totals(view)) == pytest.approx(float(plain), rel=1e-9)


def test_an_evaluation_states_what_is_not_minimised():
    """Cross-entropy beside the transfer error alone, and the other way round, as a stage with both has them."""
    model, view = tiny_hybrid().double(), first_view()
    both = evaluate(model, [view], enter_stage(model, "stage1", tiny_recipe()))
    for alone in ({"w_ce": 0.0}, {"w_mse": 0.0}):
        stage = enter_stage(model, "stage1", tiny_recipe(stage1=alone))
        assert len(stage.terms) == 1
        assert evaluate(model, [view], stage) == pytest.approx(both, rel=1e-9)
    fed = evaluate(
        model, [view], enter_stage(model, "stage1", tiny_recipe(stage1={"mse_inputs": "teacher", "w_ce": 0.0}))
    )
    assert fed["ce"] == pytest.approx(both["ce"], rel=1e-9) and fed["mse"] != pytest.approx(both["mse"])
