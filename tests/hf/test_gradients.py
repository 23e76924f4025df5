"""What gradients must reach, what they must not, and that recomputing activations changes none of them."""

import pytest
import torch

import builders
from anchorlm.plan import Plan
from builders import SLOT_KINDS, assert_near


def model_of(kind="default", plan="anchor-f", **values):
    return builders.hybrid(plan=plan, gap=True, **SLOT_KINDS[kind] | values).train()


def loss_of(model, ids, **options):
    return model(ids, labels=ids, **options).loss


@pytest.mark.parametrize("kind", SLOT_KINDS)
def test_every_memory_parameter_gets_a_gradient(kind):
    model = model_of(kind)
    loss_of(model, builders.tokens(2, 30)).backward()
    # The last layer's slot is read there too, so nothing is out of reach of the loss.
    silent = [n for n, p in model.memory_parameters().items() if p.grad is None or not bool(p.grad.any())]
    assert silent == []
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


@pytest.mark.parametrize("kind", ["default", "planes", "convex"])
def test_every_memory_parameter_has_moved_after_twenty_steps(kind):
    """From the fresh start, where gates are closed and maps are the identity."""
    model = builders.hybrid(plan="anchor-f", shaken=False, gap=True, **SLOT_KINDS[kind]).train()
    before = {n: p.detach().clone() for n, p in model.memory_parameters().items()}
    frozen = [p.requires_grad_(False) for n, p in model.named_parameters() if n not in before]
    optimiser = torch.optim.AdamW(model.memory_parameters().values(), lr=1e-3, weight_decay=0.0)
    for seed in range(20):
        optimiser.zero_grad()
        loss_of(model, builders.tokens(2, 20, seed)).backward()
        optimiser.step()
    assert [n for n, p in model.memory_parameters().items() if torch.equal(p, before[n])] == []
    assert all(p.grad is None for p in frozen)


@pytest.mark.parametrize("kind", ["default", "conv", "muon", "loud"])
def test_masked_inputs_get_exactly_no_gradient(kind):
    """Also when what is masked is not a number; and their logits are not used."""
    model = model_of(kind)
    ids = builders.tokens(2, 30)
    embeds = model.get_input_embeddings()(ids).detach()
    mask = torch.ones_like(ids)
    mask[0, :7], mask[0, 12:15], mask[1, 16:] = 0, 0, 0  # rows of unequal length, so that one ends in filler
    embeds = embeds.masked_fill(mask[..., None] == 0, float("nan")).requires_grad_()
    logits = model(inputs_embeds=embeds, attention_mask=mask).logits
    logits[mask.bool()].square().sum().backward()
    assert torch.equal(embeds.grad[mask == 0], torch.zeros_like(embeds.grad[mask == 0]))
    assert bool((embeds.grad[mask == 1] != 0).any(-1).all())


@pytest.mark.parametrize("kind", SLOT_KINDS)
def test_the_future_is_out_of_reach(kind):
    """The gradient of an output with respect to later inputs is exactly zero."""
    model = model_of(kind)
    embeds = model.get_input_embeddings()(builders.tokens(1, 29)).detach().requires_grad_()
    logits = model(inputs_embeds=embeds).logits
    for t in (0, 5, 6, 17):
        grad = torch.autograd.grad(logits[0, t].square().sum(), embeds, retain_graph=True)[0]
        assert not bool(grad[0, t + 1 :].any()) and bool(grad[0, t].any())


def memory_only(**slot):
    """One layer that sees nothing but its slot."""
    entry = {"write": 0, "chunk": 4, "gap": True} | slot
    plan = Plan.from_dict({"attention": {"kind": "none"}, "slots": {"s": entry}}, 1)
    return builders.hybrid(plan=plan, layers=1).train()


def chunks_reached(model, length=25):
    embeds = model.get_input_embeddings()(builders.tokens(1, length)).detach().requires_grad_()
    out = model(inputs_embeds=embeds).logits[0, -1]
    grad = torch.autograd.grad(out.square().sum(), embeds)[0][0]
    return {c for c in range(length // 4) if bool(grad[4 * c : 4 * c + 4].any())}


@pytest.mark.parametrize("rule", ["swiglu-ttt", "linear", "delta"])
def test_gradients_cross_all_chunks_or_as_many_as_asked(rule):
    """Through memory only: last chunk to first with full back-propagation, the newest chunk alone with detach 1."""
    assert chunks_reached(memory_only(rule=rule)) == {0, 1, 2, 3, 4, 5}
    assert chunks_reached(memory_only(rule=rule, detach=1)) == {5}
    assert 0 not in chunks_reached(memory_only(rule=rule, detach=3))


@pytest.mark.parametrize("kind", ["default", "conv", "muon", "delta", "expm-bare"])
@pytest.mark.parametrize("plan", ["anchor-f", "shared"])
def test_recomputed_activations_give_the_same_loss_and_gradients(kind, plan):
    """Also across layers that read one slot, on a padded and packed batch."""
    if plan == "shared":
        entry = {"write": 0, "read": [0, 1, 3], "gap": True, "chunk": 4} | SLOT_KINDS[kind]
        plan = Plan.from_dict({"attention": {"kind": "window", "window": 5, "sinks": 1}, "slots": {"s": entry}}, 4)
        model = builders.hybrid(plan=plan).train()
    else:
        model = model_of(kind)
    ids = builders.tokens(2, 26)
    mask, starts = torch.ones_like(ids), torch.zeros_like(ids).bool()
    mask[0, :3], starts[1, 11] = 0, True
    results = []
    for checkpoint in (False, True):
        model.zero_grad()
        loss = loss_of(model, ids, attention_mask=mask, document_starts=starts, checkpoint=checkpoint)
        loss.backward()
        results.append((loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    assert torch.equal(results[0][0], results[1][0])
    for name, grad in results[0][1].items():
        assert_near(results[1][1][name], grad, 1e-12, name)


@pytest.mark.parametrize("kind", ["default", "muon", "conv"])
def test_finite_differences_through_the_whole_model(kind):
    """Directional derivatives of the loss, through three chunks and all layers, in every group of parameters."""
    model = model_of(kind, chunk=8 if kind == "muon" else 4)
    ids = builders.tokens(1, 27 if kind == "muon" else 14)
    exact_loss(model, ids).backward()
    for part in ("w0", "steps.bias", "gate", "queries", "keys", "map", "embed_tokens", "q_proj", "v_proj"):
        chosen = {n: p for n, p in model.named_parameters() if part in n}
        direction = {n: builders.normal(*p.shape, seed=i) for i, (n, p) in enumerate(chosen.items())}
        slope = sum(float((p.grad * direction[n]).sum()) for n, p in chosen.items())
        assert slope == pytest.approx(_slope(model, ids, chosen, direction), rel=1e-5, abs=1e-8), part


@torch.no_grad()
def _slope(model, ids, chosen, direction, step=1e-6):
    losses = []
    for sign in (1, -2):
        for name, parameter in chosen.items():
            parameter += sign * step * direction[name]
        losses.append(float(exact_loss(model, ids)))
    for name, parameter in chosen.items():
        parameter += step * direction[name]
    return (losses[0] - losses[1]) / (2 * step)


def exact_loss(model, ids):
    """In float64 to the end; the model's own loss is summed in fp32."""
    logits = model(ids).logits
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
