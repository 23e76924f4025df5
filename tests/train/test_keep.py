"""Gates learn the teacher's far attention: values by hand, and nothing that packing or padding could change."""

import pytest
import torch

import builders
from anchorlm.core import UserError
from anchorlm.ops.kept import far_attention
from anchorlm.ops.window import rotate
from anchorlm.plan import Plan
from anchorlm.settings import Recipe
from anchorlm.train.keep import EMPHASIS, FLOOR, Keep, check_gates, documents, gated_slots
from anchorlm.train.losses import View
from anchorlm.train.stages import active_stages, enter_stage
from anchorlm.train.step import backward
from builders import assert_near

WINDOW = 5
RECIPE = Recipe.model_validate({"stage1": {"steps": 1, "w_mse": 0, "w_ce": 0, "w_keep": 1}, "stage2": {"steps": 0}})


def model_of(choose="gate", chunk=4, heads="kv"):
    plan = {
        "attention": {"kind": "window", "window": WINDOW, "sinks": 2},
        "slots": {
            f"k{i}": {"rule": "kept", "write": i, "chunk": chunk, "heads": heads, "options": {"choose": choose}}
            for i in (1, 3)
        },
    }
    return builders.hybrid(plan=Plan.from_dict(plan, 4))


def loss_and_gradients(model, views):
    model.zero_grad()
    losses = backward(model, views, enter_stage(model, "stage1", RECIPE), lambda *_: None)
    grads = {n: p.grad.clone() for n, p in model.memory_parameters().items() if p.grad is not None}
    return losses, grads


def view_of(ids, mask=None, starts=None):
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return View(ids, mask, starts)


def by_hand(model, ids):
    """The loss of one row from its definition, with the backbone's own full attention."""
    terms = []
    for layer in (1, 3):
        x, _ = inputs_of(model, ids, layer)
        attention = model.backbone.model.layers[layer].self_attn
        q, k, _ = attention.project(x)
        angles = model.backbone.model.rotary_emb(x, torch.arange(ids.shape[1])[None])
        keys = rotate(k, *angles).repeat_interleave(q.shape[1] // k.shape[1], 1)
        logits = rotate(q, *angles) @ keys.transpose(-1, -2) * attention.scale
        length = ids.shape[1]
        age = torch.arange(length)[:, None] - torch.arange(length)
        shares = torch.softmax(logits.masked_fill(age < 0, -torch.inf), -1)[0]
        taken = list(model.plan.slots[f"k{layer}"].taken(model.shape))
        scores = attention.writers[f"k{layer}"].memory.tokens(x, k[:, taken].transpose(1, 2))["score"][0]
        fades = attention.writers[f"k{layer}"].memory.options.choose == "decay"
        errors, weights = 0.0, 0.0
        for late in (WINDOW, 2 * WINDOW, 4 * WINDOW) if fades else (WINDOW,):
            far = shares.masked_fill(age < late, 0).amax(1).view(k.shape[1], -1, length).amax(1)[taken].T
            for token in range(2, length - late):
                weight = 1 + EMPHASIS * far[token]
                told = late * scores[token] if fades else scores[token]
                errors += (weight * (told - torch.log(far[token] + FLOOR)).square()).sum()
                weights += weight.sum()
        terms.append(errors / weights)
    return torch.stack(terms).mean()


def inputs_of(model, ids, layer):
    from anchorlm.hf import Captures

    captures = Captures()
    with torch.no_grad():
        model.hidden(ids, plan=model.plan.teacher(), captures=captures)
    return captures.inputs[layer], captures


@pytest.mark.parametrize("choose", ["gate", "decay"])
@pytest.mark.parametrize("heads", ["kv", [1]])
def test_the_loss_is_what_its_definition_says(heads, choose):
    model, ids = model_of(choose, heads=heads), builders.tokens(1, 23)
    losses, grads = loss_and_gradients(model, [view_of(ids)])
    wanted = by_hand(model, ids)
    assert losses["keep"] == pytest.approx(float(wanted.detach()), rel=1e-10)
    gates = {n: p for n, p in model.memory_parameters().items() if "gate" in n}
    for (name, _), grad in zip(gates.items(), torch.autograd.grad(wanted, list(gates.values())), strict=True):
        assert_near(grads[name], grad, 1e-9, name)


@pytest.mark.parametrize("choose", ["gate", "decay"])
def test_packing_padding_and_accumulation_change_nothing(choose):
    model = model_of(choose)
    texts = [builders.tokens(1, n, seed=n) for n in (13, 19)]
    apart = loss_and_gradients(model, [view_of(text) for text in texts])
    starts = torch.zeros(1, 32, dtype=torch.bool)
    starts[0, [0, 13]] = True
    packed = loss_and_gradients(model, [view_of(torch.cat(texts, 1), starts=starts)])
    padded, mask = torch.zeros(2, 24, dtype=torch.long), torch.zeros(2, 24, dtype=torch.bool)
    padded[0, 5:18], padded[1, :19], mask[0, 5:18], mask[1, :19] = texts[0][0], texts[1][0], True, True
    for losses, grads in (packed, loss_and_gradients(model, [view_of(padded, mask)])):
        assert losses["keep"] == pytest.approx(apart[0]["keep"], rel=1e-10)
        for name, grad in apart[1].items():
            assert_near(grads[name], grad, 1e-9, name)


def test_documents_are_numbered_and_placed():
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0]]).bool()
    starts = torch.tensor([[0, 1, 0, 0, 0, 1, 0, 0]]).bool()
    text, place = documents(mask, starts)
    assert text.tolist() == [[-1, 1, 1, -1, 1, 2, 2, -1]]
    assert place[mask].tolist() == [0, 1, 2, 0, 1]


def test_only_learned_gates_are_trained_by_it():
    assert gated_slots(model_of().plan) == ("k1", "k3")
    assert gated_slots(model_of("decay").plan) == ("k1", "k3") and gated_slots(model_of("recent").plan) == ()
    with pytest.raises(UserError, match="nothing to train: no slot of the plan has weights"):
        enter_stage(model_of("recent"), "stage1", RECIPE)
    fast = {"attention": {"kind": "window", "window": 8}, "slots": {"a": {"write": 1, "chunk": 8}}}
    with pytest.raises(UserError, match="choose 'gate' or 'decay', and the plan has none"):
        enter_stage(builders.hybrid(plan=Plan.from_dict(fast, 4)), "stage1", RECIPE)


def test_rows_within_the_window_are_refused():
    plan, stages = model_of().plan, active_stages(RECIPE)
    with pytest.raises(UserError, match="data.length is 5; w_keep needs rows longer than the window, 5"):
        check_gates(plan, WINDOW, stages)
    check_gates(plan, WINDOW, {"stage2": RECIPE.stage2})
    check_gates(plan, WINDOW + 1, stages)


@pytest.mark.parametrize("reach", [{"kind": "full"}, {"kind": "none"}, {"kind": "segment", "segment": 7}])
def test_the_writer_may_see_more_or_less_than_its_readers(reach):
    plan = {
        "attention": {"kind": "window", "window": WINDOW, "sinks": 2},
        "layers": {"1": reach},
        "slots": {"k": {"rule": "kept", "write": 1, "read": [2, 3], "chunk": 4}},
    }
    model = builders.hybrid(plan=Plan.from_dict(plan, 4))
    losses, grads = loss_and_gradients(model, [view_of(builders.tokens(1, 23))])
    assert losses["keep"] > 0 and grads


def test_a_text_within_the_window_teaches_nothing():
    term = Keep(model_of(), ("k1",))
    ids = builders.tokens(1, WINDOW)
    x, captures = inputs_of(term.model, ids, 1)
    view = view_of(ids)
    view.inputs = captures.inputs
    assert term.totals(view).tolist() == [0.0] and term.sums(view).tolist() == [0.0]


def test_the_teachers_far_attention_is_worked_out_once_a_step(monkeypatch):
    model, calls = model_of(), []
    monkeypatch.setattr("anchorlm.train.keep.far_attention", lambda *a: calls.append(a) or far_attention(*a))
    views = [view_of(torch.randint(0, 50, (1, length))) for length in (23, 31)]
    loss_and_gradients(model, views)
    assert len(calls) == len(model.plan.slots) * len(views)
    assert not any(view.found for view in views)
