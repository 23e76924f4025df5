import pytest
import torch

from anchorlm.convert import adapters
from anchorlm.core import UserError
from hybrids import logits, shake_lora, tokens


def test_fresh_lora_changes_nothing_and_covers_every_layer(hybrid):
    before = logits(hybrid)
    covered = adapters.add_lora(hybrid, 4, 8, ["q", "k", "v", "o"])
    assert torch.equal(logits(hybrid), before)
    assert covered == dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), (4, 4))
    assert len(adapters.lora_parameters(hybrid)) == 2 * 4 * 4
    assert "q_proj 4 of 4 layers" in adapters.coverage_line(covered)


def test_adding_lora_leaves_other_requires_grad_flags(hybrid):
    for index, parameter in enumerate(hybrid.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    before = {parameter: parameter.requires_grad for parameter in hybrid.parameters()}
    adapters.add_lora(hybrid, 2, 4, ["q"])
    assert all(parameter.requires_grad == flag for parameter, flag in before.items())
    assert all(parameter.requires_grad for parameter in adapters.lora_parameters(hybrid).values())


def test_lora_never_touches_memory(hybrid):
    adapters.add_lora(hybrid, 2, 4, ["q", "gate_proj"])
    assert not set(adapters.lora_parameters(hybrid)) & set(hybrid.memory_parameters())


@pytest.mark.parametrize("targets, line", [(["qq"], "'qq'"), ([], "empty"), (["lm_head"], "'lm_head'")])
def test_unknown_targets_are_named(hybrid, targets, line):
    with pytest.raises(UserError, match=line):
        adapters.add_lora(hybrid, 2, 4, targets)


def test_rank_and_second_adapter_are_checked(hybrid):
    with pytest.raises(UserError, match="rank is 0"):
        adapters.add_lora(hybrid, 0, 4)
    adapters.add_lora(hybrid, 2, 4)
    with pytest.raises(UserError, match="already has LoRA"):
        adapters.add_lora(hybrid, 2, 4)


def test_disabled_is_the_base_and_keeps_gradients(hybrid):
    before = logits(hybrid)
    adapters.add_lora(hybrid, 2, 4)
    shake_lora(hybrid)
    student = hybrid(tokens()).logits.sum()
    with adapters.lora_disabled(hybrid), adapters.lora_disabled(hybrid):
        assert torch.equal(logits(hybrid), before)
    assert not torch.equal(logits(hybrid), before)
    student.backward()
    assert all(parameter.grad is not None for parameter in adapters.lora_parameters(hybrid).values())


def test_merge_gives_the_same_logits_and_the_old_names(hybrid):
    names = set(dict(hybrid.named_parameters()))
    adapters.add_lora(hybrid, 2, 4)
    shake_lora(hybrid)
    before = logits(hybrid)
    adapters.merge_lora(hybrid)
    torch.testing.assert_close(logits(hybrid), before, atol=1e-5, rtol=1e-4)
    assert set(dict(hybrid.named_parameters())) == names
    assert not adapters.has_lora(hybrid)


def test_lora_is_fp32_on_a_bf16_backbone(hybrid):
    hybrid.backbone.to(torch.bfloat16)
    for parameter in hybrid.memory_parameters().values():
        parameter.data = parameter.data.float()
    adapters.add_lora(hybrid, 2, 4)
    shake_lora(hybrid)
    assert {parameter.dtype for parameter in adapters.lora_parameters(hybrid).values()} == {torch.float32}
    assert logits(hybrid).isfinite().all()


def test_a_merge_that_is_not_finite_is_refused(hybrid):
    adapters.add_lora(hybrid, 2, 4)
    for parameter in adapters.lora_parameters(hybrid).values():
        parameter.data.fill_(float("nan"))
    with pytest.raises(UserError, match="not finite"):
        adapters.merge_lora(hybrid)
