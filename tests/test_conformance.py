"""The conformance suite over every preset and every rule, on tiny Llama and Qwen3 shapes, in float64.

C1 prefix, C2 step, C3 split, C4 gradient, C5 causality, C6 padding, C7 packing, C8 bytes, C9 identity, C10 parameters,
C11 cache, C12 drift, C13 learning, C14 generation.
"""

from functools import cache

import pytest
import torch
from torch.nn import functional as F

import builders
from anchorlm.describe import state_bytes
from anchorlm.hf import AnchorForCausalLM
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from builders import assert_near, assert_same_state, tokens
from probes import logits_of, read_by

pytestmark = pytest.mark.filterwarnings("ignore:.*pad_token_id.*")
FAMILIES, WINDOW, LENGTH = ("llama", "qwen3"), 5, 23
HEDGEHOG, BOTH = {"width": 5}, [[0, 1]]
PLANS = {
    "swa": ("swa", {"sinks": 2}),
    "anchor": ("anchor", {"sinks": 2}),
    "anchor-hybrid": ("anchor-hybrid", {"sinks": 2}),
    "linear": ("anchor-f", {"rule": "linear"}),
    "delta": ("anchor-f", {"rule": "delta"}),
    "kept": ("anchor-f", {"rule": "kept", "options": {"tokens": 4}}),
    "kept-one-head": ("anchor-f", {"rule": "kept", "heads": [1], "options": {"tokens": 4}}),
    "lolcats": ("lolcats", {"options": HEDGEHOG}),
    "lolcats-terrace": ("lolcats", {"kind": "terrace", "options": HEDGEHOG}),
    "liger": ("liger", {}),
    "liger-hgrn2": ("liger", {"options": {"variant": "hgrn2"}}),
    "liger-scalar": ("liger", {"options": {"variant": "scalar"}}),
    "liger-gsa": ("liger", {"rule": "gsa", "options": {"slots": 4}}),
    "liger-h": ("liger", {"full_every": 2}),
    "lizard": ("lizard", {}),
    "lizard-hybrid": ("lizard", {"full_every": 2}),
    "titan-llama": ("titan-llama", {"segment": WINDOW, "options": {"width": 5}}),
    "titan-llama-window": ("titan-llama", {"segment": 4, "converted": 1, "later": "window", "sinks": 2}),
    "titan-llama-group": ("titan-llama", {"segment": WINDOW, "options": {"width": 5, "group": 2}}),
    "titan-llama-shared": ("titan-llama", {"segment": WINDOW, "groups": BOTH, "options": {"width": 5}}),
    "lolcats-shared": ("lolcats", {"groups": BOTH, "options": HEDGEHOG}),
    "lolcats-terrace-shared": ("lolcats", {"kind": "terrace", "groups": BOTH, "options": HEDGEHOG}),
    "liger-shared": ("liger", {"groups": BOTH}),
    "liger-hgrn2-shared": ("liger", {"groups": BOTH, "map": "expm", "options": {"variant": "hgrn2"}}),
    "liger-scalar-shared": ("liger", {"groups": BOTH, "map": "dense", "options": {"variant": "scalar"}}),
    "liger-gsa-shared": ("liger", {"rule": "gsa", "groups": BOTH, "options": {"slots": 4}}),
    "lizard-shared": ("lizard", {"groups": BOTH, "map": {"kind": "planes", "planes": 2}}),
    "nmm": ("anchor", {"rule": "nmm", "sinks": 2, "heads": "q", "map": "cayley", "options": {"width": 5}}),
}
EVERY = [(family, name) for family in FAMILIES for name in PLANS]
OWN = [case for case in EVERY if case[1].startswith(("lolcats", "liger", "lizard"))]
TITAN = [case for case in EVERY if case[1].startswith(("titan", "nmm"))]


def plan_of(family, name, layers=2):
    preset, values = PLANS[name]
    return build(preset, builders.shape(family, layers), window=WINDOW, **values)


def learns(name):
    """Whether a plan has parameters of its own: Liger without read maps has none."""
    return not name.startswith("liger") or name.endswith("shared")


@cache
def model_of(family, name, dtype=torch.float64):
    """Two layers with memory weights as training might leave them."""
    return builders.hybrid(family, plan_of(family, name), layers=2, dtype=dtype)


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c1_c2_c3_a_prefix_a_step_and_any_split_give_one_answer(family, name):
    model, ids = model_of(family, name), tokens(2, LENGTH)
    whole, end = read_by(model, ids, [LENGTH])
    for t in (1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 2 * WINDOW + 1, 17):
        assert_near(logits_of(model, ids[:, :t]), whole[:, :t], 1e-10, f"prefix {t}")
    for widths in (
        [1] * LENGTH,
        [LENGTH - 1, 1],
        [1, LENGTH - 1],
        [WINDOW - 1, 3, 2 * WINDOW, LENGTH - 3 * WINDOW - 2],
    ):
        parts, state = read_by(model, ids, widths)
        assert_near(parts, whole, 1e-10, f"split {widths}")
        assert_same_state(state.state, 1, end.state, 1, model.plan)


@pytest.mark.parametrize("family,name", OWN)
def test_c4_c10_gradients_reach_every_parameter_and_do_not_depend_on_the_pieces(family, name):
    """A piece as long as the text, or of one token, is the same function."""
    found = []
    for chunk in (1, LENGTH):
        preset, values = PLANS[name]
        plan = build(preset, builders.shape(family, 2), window=WINDOW, **(values | {"chunk": chunk}))
        model = builders.hybrid(family, plan, layers=2)
        logits_loss = model(tokens(2, LENGTH)).logits.square().mean()
        own = model.memory_parameters()
        leaves = [*own.values(), model.backbone.model.layers[0].self_attn.k_proj.weight]
        found.append(torch.autograd.grad(logits_loss, leaves))
        assert all(bool(grad.abs().sum() > 0) for grad in found[-1])
    for a, b in zip(*found, strict=True):
        assert_near(a, b, 1e-9)
    if not learns(name):
        assert not own and set(model.backbone.state_dict()) == set(builders.teacher(family, 2).state_dict())


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c5_nothing_leaks_back(family, name):
    model, ids = model_of(family, name), tokens(1, LENGTH)
    before = logits_of(model, ids)
    for j in (0, WINDOW, 2 * WINDOW + 1, LENGTH - 1):
        other = ids.clone()
        other[0, j] = (other[0, j] + 1) % builders.VOCAB
        changed = (logits_of(model, other) != before).any(-1)[0]
        assert not bool(changed[:j].any()) and bool(changed[j])


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c6_c7_padding_and_packing_change_nothing(family, name):
    model = model_of(family, name)
    texts = [tokens(1, n, seed=n) for n in (13, 1, 12)]
    alone = [logits_of(model, text) for text in texts]
    packed, starts = torch.cat(texts, 1), torch.zeros(1, 26, dtype=torch.bool)
    starts[0, [0, 13, 14]] = True
    assert_near(logits_of(model, packed, document_starts=starts), torch.cat(alone, 1))
    mask = torch.ones(2, 19)
    mask[0, [0, 1, 7, 11, 12, 18]] = 0
    ids = tokens(2, 19)
    ids[0, mask[0].bool()] = texts[0]
    state = model.new_cache()
    padded = logits_of(model, ids, attention_mask=mask, cache=state)
    assert_near(padded[0, mask[0].bool()][None], alone[0])
    assert_near(padded[1:], logits_of(model, ids[1:]))
    more = tokens(1, 4, seed=9).expand(2, -1)
    rest = logits_of(model, more, cache=state)[:1]
    assert_near(rest, logits_of(model, torch.cat([texts[0], more[:1]], 1))[:, 13:])


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c8_bytes_are_the_formula_and_do_not_grow(family, name):
    model = model_of(family, name, torch.float32)
    expected = state_bytes(model.plan, ModelShape.from_config(model.backbone.config, 4))
    growing = expected.pop("full attention per token")
    for length in (31, 91):
        _, state = read_by(model, tokens(1, length), [length])
        held = state.nbytes()
        assert held.pop("full attention") == growing * length
        assert held.pop("chunk buffer") <= expected["chunk buffer"]
        assert held == {part: size for part, size in expected.items() if part != "chunk buffer"}


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c9_full_attention_without_slots_is_the_teacher(family, name):
    model, ids = model_of(family, name, torch.float32), tokens(2, LENGTH)
    teacher = builders.teacher(family, 2, torch.float32)
    assert torch.equal(logits_of(model, ids, plan=model.plan.teacher()), teacher(ids).logits)


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c11_a_cache_is_cloned_reordered_reset_and_never_cropped_silently(family, name):
    model, ids, more = model_of(family, name), tokens(2, LENGTH), tokens(2, 6, seed=8)
    _, state = read_by(model, ids, [LENGTH])
    kept = state.snapshot()
    first = logits_of(model, more, cache=state)
    state.restore(kept)
    assert torch.equal(logits_of(model, more, cache=state), first)
    state.restore(kept)
    state.reorder_cache(torch.tensor([1, 0]))
    assert_near(logits_of(model, more.flip(0), cache=state), first.flip(0))
    state.restore(kept)
    state.reset(torch.tensor([0]))
    after = logits_of(model, more, cache=state)
    assert_near(after[:1], logits_of(model, more[:1]))
    assert_near(after[1:], first[1:])
    with pytest.raises(ValueError, match="cannot be cropped"):
        state.crop(1)


@pytest.mark.parametrize("name", [name for family, name in OWN + TITAN if family == "llama"])
@torch.no_grad()
def test_c12_bf16_weights_with_fp32_states_stay_near(name):
    """768 random tokens, against float64; the last ones no worse than the first."""
    exact, rough = model_of("llama", name), model_of("llama", name, torch.bfloat16)
    ids = tokens(1, 768)
    ours, theirs = (m(ids).logits.double() for m in (rough, exact))
    assert bool(torch.isfinite(ours).all())
    early, late = ((ours - theirs)[:, part].norm() / theirs[:, part].norm() for part in (slice(128), slice(-128, None)))
    assert float(late) < 0.25 and float(late) < 2 * float(early) + 0.02


@pytest.mark.parametrize("family,name", [case for case in OWN + TITAN if learns(case[1])])
def test_c13_every_parameter_learns(family, name):
    model = builders.hybrid(family, plan_of(family, name), layers=2, dtype=torch.float32, shaken=False)
    own, ids = model.memory_parameters(), tokens(2, LENGTH)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = {n: p.requires_grad_(True).detach().clone() for n, p in own.items()}
    optimiser, seen = torch.optim.AdamW(own.values(), lr=1e-2), dict.fromkeys(own, False)
    for _ in range(20):
        optimiser.zero_grad()
        model(ids, labels=ids).loss.backward()
        seen = {n: seen[n] or bool(p.grad is not None and p.grad.any()) for n, p in own.items()}
        optimiser.step()
    assert all(seen.values()), [n for n, found in seen.items() if not found]
    assert all(not torch.equal(p, before[n]) for n, p in own.items())


@pytest.mark.parametrize("family,name", EVERY)
@torch.no_grad()
def test_c14_generate_equals_the_argmax_of_one_forward(family, name):
    model, prompt = model_of(family, name), tokens(2, 9)
    made = model.generate(prompt, max_new_tokens=12, do_sample=False)
    assert torch.equal(logits_of(model, made)[:, 8:-1].argmax(-1), made[:, 9:])


@pytest.mark.parametrize("name", ["lolcats", "liger", "lizard", "titan-llama", "lizard-shared"])
@torch.no_grad()
def test_a_saved_model_gives_the_same_answers(name, tmp_path):
    model, ids = model_of("qwen3", name, torch.float32), tokens(2, LENGTH)
    model.save_pretrained(tmp_path)
    again = AnchorForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert again.plan == model.plan
    assert_near(logits_of(again, ids), logits_of(model, ids), 1e-6)
    fresh = builders.hybrid("qwen3", plan_of("qwen3", name), layers=2, dtype=torch.float32, shaken=False)
    loss = F.mse_loss(logits_of(fresh, ids), logits_of(model, ids))
    assert (float(loss) == 0) == (name == "liger")
