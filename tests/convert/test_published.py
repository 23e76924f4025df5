"""Weights in the layout of the LoLCATs repository: a synthetic checkpoint of that form, and what does not fit."""

import pytest
import torch
from safetensors.torch import save_file

from anchorlm.convert.attach import convert
from anchorlm.convert.bases import load_base
from anchorlm.convert.published import fill, read_published
from anchorlm.core import UserError
from anchorlm.hf import Captures
from anchorlm.ops import reference_linear as reference
from anchorlm.ops.window import rotate
from anchorlm.plan import ModelShape
from anchorlm.presets import build
from builders import assert_near
from hybrids import published as checkpoint
from hybrids import tokens

HEADS, DIM, WIDTH, WINDOW = 4, 8, 6, 8


@pytest.fixture
def base(base_folder):
    return load_base(str(base_folder), dtype="float32")


def plan_of(base, **values):
    return build(
        "lolcats",
        ModelShape.from_config(base.model.config),
        **{"window": WINDOW, "options": {"width": WIDTH}, **values},
    )


def test_names_shapes_and_meaning_are_the_published_ones(base, tmp_path):
    """The first layer's output, by the published formula from the checkpoint's own tensors."""
    stored = checkpoint()
    torch.save({"model_state_dict": stored}, tmp_path / "distill.pt")
    plan = plan_of(base)
    model = convert(base, plan)
    fill(model, read_published(tmp_path / "distill.pt", plan, model.shape))
    ids, captures = tokens(1, 21), Captures()
    with torch.no_grad():
        model(ids, captures=captures)
    x = captures.inputs[0]
    attention = model.backbone.model.layers[0].self_attn
    q, k, v = (u[0] for u in attention.project(x))
    cos, sin = model.backbone.model.rotary_emb(x, torch.arange(21)[None])
    q, k = (rotate(u[None], cos, sin)[0] for u in (q, k))
    maps = [stored[f"model.layers.0.self_attn.feature_map_{part}.mlp.layer"] for part in "qk"]
    share = torch.sigmoid(stored["model.layers.0.self_attn.window_factors"].flatten())
    heads = []
    for h in range(HEADS):
        features = [
            torch.stack([reference.hedgehog(u, w[h]) for u in part]) for part, w in zip((q[h], k[h // 2]), maps)
        ]
        first = lambda t: max(0, t - WINDOW + 1)  # noqa: E731
        heads.append(reference.shared_normaliser(q[h], k[h // 2], v[h // 2], first, features, share[h], 1.0, DIM**-0.5))
    assert_near(captures.outputs[0][0], torch.stack(heads, 1).flatten(1), 1e-5)


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_finetuned_checkpoint_brings_its_lora(base, tmp_path, kind):
    stored = checkpoint("base_model.model.", lora=True)
    path = tmp_path / f"lora.{kind}"
    torch.save(stored, path) if kind == "pt" else save_file(stored, path)
    plan = plan_of(base)
    model = convert(base, plan)
    fill(model, read_published(path, plan, model.shape))
    own = dict(model.named_parameters())
    name = "model.layers.2.self_attn.q_proj.lora_A.default.weight"
    assert torch.equal(own[f"backbone.{name}"], stored[f"base_model.model.{name}"])
    assert model.backbone.peft_config["default"].r == 2


BAD = {
    "missing": ({"model.layers.1.self_attn.window_factors": None}, {}, "lacks model.layers.1.self_attn.window_factors"),
    "unexpected": ({"model.norm.weight": torch.ones(3)}, {}, "has unexpected model.norm.weight"),
    "shape": (
        {"model.layers.0.self_attn.feature_map_q.mlp.layer": torch.ones(2, 8, 6)}, {},
        r"feature_map_q.mlp.layer has shape \(2, 8, 6\), the plan needs \(4, 8, 6\)",
    ),
    "heads": ({}, {"heads": "kv"}, "slot 'l0' is not of the published form: .* heads q"),
    "width": ({}, {"options": {"width": 5}}, r"has shape \(4, 8, 6\), the plan needs \(4, 8, 5\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_named(base, tmp_path, case):
    changes, values, said = BAD[case]
    stored = {name: value for name, value in (checkpoint() | changes).items() if value is not None}
    torch.save(stored, tmp_path / "w.pt")
    with pytest.raises(UserError, match=said):
        read_published(tmp_path / "w.pt", plan_of(base, **values), ModelShape.from_config(base.model.config))


def test_a_file_that_is_no_checkpoint_is_told(base, tmp_path):
    shape = ModelShape.from_config(base.model.config)
    (tmp_path / "w.pt").write_text("no weights")
    for path, said in ((tmp_path / "none.pt", "no such file"), (tmp_path / "w.pt", "cannot be read")):
        with pytest.raises(UserError, match=said):
            read_published(path, plan_of(base), shape)
