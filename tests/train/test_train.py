"""Whole runs on a tiny hybrid: what trains, what is written, what stops a run."""

import io
import json

import pytest
import torch
from rich.console import Console
from tiny import PLAN, run_files, tiny_hybrid, tiny_recipe, tiny_store

from anchorlm.convert.attach import convert
from anchorlm.convert.bases import load_base
from anchorlm.convert.load import load
from anchorlm.core import UserError
from anchorlm.data import batches
from anchorlm.plan import Plan
from anchorlm.train import TrainingError, train
from anchorlm.train.losses import View
from anchorlm.train.sinks import read_metrics
from anchorlm.train.stages import enter_stage
from anchorlm.train.step import backward, evaluate, make_view
from small import char_tokenizer, tiny_llama


def quiet():
    return Console(file=io.StringIO(), width=200)


def go(out, model=None, recipe=None, store=None, **options):
    model = model if model is not None else tiny_hybrid()
    options.setdefault("console", quiet())
    train(model, char_tokenizer(), recipe or tiny_recipe(), store or tiny_store(), out, **options)
    return model


def snapshot(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def changed(before, after):
    return sorted(name for name, value in before.items() if not torch.equal(value, after[name]))


def test_a_run_leaves_its_record_and_a_model(tmp_path):
    go(tmp_path / "run", eval_data=tiny_store("other words"), recipe=tiny_recipe(eval_every=2))
    files = run_files(tmp_path / "run")
    for name in ("config.yaml", "env.json", "metrics.jsonl", "checkpoints", "config.json", "run.json"):
        assert name in files
    steps = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if "eval" not in r]
    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[0]["losses"].keys() == {"mse", "ce"} and steps[-1]["losses"].keys() == {"ce"}
    assert steps[-1]["tokens"] == 6 * 32 and steps[-1]["gates"]
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


def test_stage1_trains_exactly_what_it_lists(tmp_path):
    model = tiny_hybrid()
    before = snapshot(model)
    go(tmp_path / "run", model, tiny_recipe(stage1={"steps": 2}, stage2={"steps": 0}))
    listed = json.loads((tmp_path / "run" / "trainable-stage1.json").read_text())
    assert changed(before, snapshot(model)) == listed == sorted(model.memory_parameters())


@pytest.fixture
def base(tmp_path):
    """A base folder, so that the adapter can be stored apart from it."""
    model, tokenizer = tiny_llama(layers=4), char_tokenizer()
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return load_base(str(tmp_path / "base"), dtype="float32")


def test_stage2_trains_adapters_and_memory_and_nothing_else(tmp_path, base):
    model = convert(base, Plan.from_dict(PLAN, 4))
    before = snapshot(model)
    go(tmp_path / "run", model, tiny_recipe(stage1={"steps": 0}, stage2={"steps": 2}))
    listed = json.loads((tmp_path / "run" / "trainable-stage2.json").read_text())
    after = snapshot(model)
    memory = [name for name in listed if ".lora_" not in name]
    assert memory == sorted(model.memory_parameters())
    assert len([name for name in listed if ".lora_A" in name]) == 4 * 4
    assert all(after[name].any() for name in listed if ".lora_B" in name)
    kept = {name.replace(".base_layer.", "."): value for name, value in after.items() if name not in listed}
    assert changed({name: value for name, value in before.items() if name not in listed}, kept) == []


HEADS = {"layers": {"1": {"heads": {0: "full"}}, "3": {"kind": "full", "heads": {1: {"kind": "window", "window": 8}}}}}


@pytest.mark.parametrize("plan", [PLAN, PLAN | HEADS], ids=["layers", "heads"])
def test_the_folder_of_a_run_loads_as_the_trained_model(tmp_path, base, plan):
    model = go(tmp_path / "run", convert(base, Plan.from_dict(plan, 4)))
    loaded, _ = load(tmp_path / "run", dtype="float32")
    ids = torch.randint(0, 256, (1, 50))
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_every_trained_tensor_gets_a_gradient():
    from anchorlm.train.stages import enter_stage

    model, recipe = tiny_hybrid(), tiny_recipe()
    view = first_view()
    for name in ("stage1", "stage2"):
        stage = enter_stage(model, name, recipe)
        backward(model, [view], stage, lambda parts, view: None)
        silent = [n for n, p in stage.parameters.items() if p.grad is None or not p.grad.abs().sum()]
        assert [n for n in silent if ".lora_A" not in n] == []  # lora_B is zero at the start
        for parameter in model.parameters():
            parameter.grad = None


def gradients(recipe, view, name="stage1"):
    """Losses of a fresh hybrid and the gradients of its memory."""
    model = tiny_hybrid().double()
    stage = enter_stage(model, name, recipe)
    losses = backward(model, [view], stage, lambda parts, view: None)
    return losses, {name: p.grad for name, p in model.memory_parameters().items()}


def first_view(**options):
    return make_view(next(batches(tiny_store(), 64, 2, **options)), torch.device("cpu"), "reset")


def test_recomputed_activations_change_nothing():
    plain, again = (gradients(tiny_recipe(checkpoint=flag), first_view()) for flag in (False, True))
    assert plain[0] == pytest.approx(again[0], rel=1e-12)
    for name, grad in plain[1].items():
        torch.testing.assert_close(grad, again[1][name], msg=name)


def test_detach_cuts_gradients_and_nothing_else():
    view = make_view(next(batches(tiny_store(), 64, 2)), torch.device("cpu"), "carry")
    whole, cut = (gradients(tiny_recipe(detach=n), view) for n in (0, 1))
    assert whole[0] == cut[0]
    model = tiny_hybrid()
    before = [module.slot for module in model.modules() if hasattr(module, "slot")]
    enter_stage(model, "stage1", tiny_recipe(detach=1))
    assert before == [module.slot for module in model.modules() if hasattr(module, "slot")]
    start = "backbone.model.layers.0.self_attn.writers.head.memory.w0"
    assert not torch.allclose(whole[1][start], cut[1][start])


def test_packed_documents_equal_padded_ones():
    """The same two documents in one row, and each in a row of its own with padding on either side."""
    model = tiny_hybrid().double()
    stage = enter_stage(model, "stage1", tiny_recipe())
    a, b = torch.randint(0, 256, (1, 40)), torch.randint(0, 256, (1, 23))
    starts = torch.zeros(1, 63, dtype=torch.bool)
    starts[0, [0, 40]] = True
    packed = View(torch.cat([a, b], 1), torch.ones(1, 63, dtype=torch.bool), starts)
    padded_ids = torch.cat([a, torch.nn.functional.pad(b, (9, 8))])
    mask = torch.cat([torch.ones(1, 40), torch.nn.functional.pad(torch.ones(1, 23), (9, 8))]).bool()
    assert evaluate(model, [packed], stage) == pytest.approx(evaluate(model, [View(padded_ids, mask)], stage), rel=1e-9)


def test_mse_falls_in_stage1(tmp_path):
    recipe = tiny_recipe(stage1={"steps": 20, "lr": 3e-3, "w_ce": 0.0}, stage2={"steps": 0}, data={"batch": 4})
    go(tmp_path / "run", recipe=recipe)
    mse = [r["losses"]["mse"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert sum(mse[-5:]) < 0.9 * sum(mse[:5])


def test_accumulation_equals_a_larger_batch(tmp_path):
    recipes = {n: tiny_recipe(data={"batch": 4 // n, "accumulate": n, "packing": "documents"}) for n in (1, 4)}
    losses = {}
    for n, recipe in recipes.items():
        go(tmp_path / f"run{n}", tiny_hybrid().double(), recipe)
        losses[n] = [r["losses"] for r in read_metrics(tmp_path / f"run{n}" / "metrics.jsonl")]
    for one, four in zip(losses[1], losses[4], strict=True):
        assert one == pytest.approx(four, rel=1e-6)


def test_dry_run_prints_what_trains_and_changes_nothing(tmp_path):
    model, console = tiny_hybrid(), quiet()
    before = snapshot(model)
    plan = train(model, char_tokenizer(), tiny_recipe(), "nowhere.txt", tmp_path / "run", dry_run=True, console=console)
    text = console.file.getvalue()
    assert not (tmp_path / "run").exists() and not changed(before, snapshot(model))
    counts = {(row.stage, row.group): row.count for row in plan.rows}
    assert counts["stage2", "LoRA"] == 4 * 2 * ((32 + 32) + 2 * (32 + 16) + (32 + 32))
    memory = sum(p.numel() for p in model.memory_parameters().values())
    assert sum(row.count for row in plan.rows if row.stage == "stage1" and row.lr) == memory
    assert "frozen" in text and "optimizer" in text and f"{plan.total_bytes:,}" in text
    assert plan.memory["weights"] > 0 and plan.memory["activations"] > 0


def test_a_stage_shorter_than_its_warmup_is_told(tmp_path):
    text = tiny_store()
    for steps, warmup, told in ((3, 12, True), (3, 4, True), (3, 3, False), (3, 0, False), (0, 12, False)):
        console = Console(file=io.StringIO(), width=200)
        recipe = tiny_recipe(stage1={"steps": steps, "warmup": warmup})
        train(tiny_hybrid(), char_tokenizer(), recipe, text, tmp_path, console=console, dry_run=True)
        lines = [line for line in console.file.getvalue().splitlines() if line.startswith("warning: stage")]
        assert len(lines) == told
        if told:
            said = f"stage1.steps is 3, below stage1.warmup, {warmup}: the learning rate ends at {3 / warmup:.0%} of"
            assert lines[0].startswith(f"warning: {said}")


def test_a_plan_without_slots_has_no_stage1(tmp_path):
    model = tiny_hybrid({"attention": PLAN["attention"]})
    with pytest.raises(UserError, match="stage1 has nothing to train.*stage1.steps=0"):
        go(tmp_path / "run", model)
    assert not (tmp_path / "run").exists()
    go(tmp_path / "run", model, tiny_recipe(stage1={"steps": 0}))


def test_nothing_to_do_is_an_error(tmp_path):
    with pytest.raises(UserError, match="both 0"):
        go(tmp_path / "run", recipe=tiny_recipe(stage1={"steps": 0}, stage2={"steps": 0}))
    with pytest.raises(UserError, match="nothing to minimise"):
        go(tmp_path / "run", recipe=tiny_recipe(stage1={"w_ce": 0, "w_mse": 0}))


def test_an_occupied_folder_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(UserError, match="not empty"):
        go(tmp_path)


def poison_at(model, step, where):
    """Make the given layer's output infinite in the given forward pass of a training step."""
    calls = {"n": 0}
    layer = model.backbone.model.layers[where]

    def hook(module, inputs, output):
        if torch.is_grad_enabled():
            calls["n"] += 1
        bad = calls["n"] >= step
        first = output[0] if isinstance(output, tuple) else output
        first = first * float("inf") if bad else first
        return (first, *output[1:]) if isinstance(output, tuple) else first

    return layer.register_forward_hook(hook)


def test_a_poisoned_batch_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    model = tiny_hybrid()
    poison_at(model, 4, where=2)
    with pytest.raises(TrainingError) as caught:
        go(tmp_path / "run", model)
    text = str(caught.value)
    assert "step 4" in text and "layers.2" in text and "step-00000003" in text
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert [r["step"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


def test_a_gradient_that_is_not_finite_names_its_parameter(tmp_path):
    model = tiny_hybrid()
    name, parameter = next(iter(model.memory_parameters().items()))
    parameter.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(TrainingError) as caught:
        go(tmp_path / "run", model)
    assert "step 1" in str(caught.value) and name in str(caught.value)


def test_a_token_outside_the_vocabulary_is_named(tmp_path):
    store = tiny_store()
    store.tokens[40:80] = 999
    with pytest.raises(TrainingError, match="token id 999"):
        go(tmp_path / "run", store=store, recipe=tiny_recipe(data={"batch": 40}))


def test_damaged_weights_are_named(tmp_path):
    model = tiny_hybrid()
    with torch.no_grad():
        model.backbone.model.embed_tokens.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match="embed_tokens"):
        go(tmp_path / "run", model)


def test_bf16_weights_keep_memory_and_adapters_in_fp32(tmp_path, base):
    model = go(tmp_path / "run", convert(base, Plan.from_dict(PLAN, 4)), tiny_recipe(dtype="bfloat16"))
    listed = json.loads((tmp_path / "run" / "trainable-stage2.json").read_text())
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if name in listed else torch.bfloat16), name


def test_too_short_a_text(tmp_path):
    with pytest.raises(UserError, match="need at least 4096"):
        go(tmp_path / "run", store=tiny_store(documents=2), recipe=tiny_recipe(data={"length": 4096}))
