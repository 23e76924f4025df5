"""A head that the output projection does not listen to may be windowed without any change; the other one is all."""

import torch

from anchorlm.analyze.heads import functions
from anchorlm.hf.layers import attention_as, run_layers
from anchorlm.plan import Plan, Reach
from builders import assert_near, hybrid, tokens

LAYER = 1


@torch.inference_mode()
def test_one_kv_head_is_windowed():
    model, window = hybrid(plan="swa", layers=3), Reach("window", 5, 2)
    layer = model.backbone.model.layers[LAYER].self_attn
    layer.o_proj.weight[:, 2 * model.shape.head_dim :] = 0  # the query heads of KV head 1
    full, record = Plan((Reach(),) * 3), {}
    whole = run_layers(model, model.get_input_embeddings()(tokens(1, 30)), full, record=record)
    narrow = run_layers(model, record[LAYER], Plan((Reach(), window, Reach())), first=LAYER)

    def with_head(head):
        with attention_as(model, functions(model, LAYER, head, record[LAYER], window)):
            return run_layers(model, record[LAYER], full, first=LAYER)

    assert torch.equal(with_head(1), whole)
    assert_near(with_head(0), narrow)
    assert float((narrow - whole).abs().max()) > 1e-3
