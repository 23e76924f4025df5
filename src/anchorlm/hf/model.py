"""The hybrid as a transformers model: a pretrained causal language model whose attention layers are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.initialization import guard_torch_init_functions, no_init_weights
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..core import UserError
from ..memory.base import Memory, StepSize
from ..memory.features import Features, HedgehogMap
from ..memory.kept import Gate
from ..memory.slot import ShortConv, SlotWriter
from ..nn.attention import HybridAttention, Step
from ..nn.reader import MetaLogits, SlotReader
from ..nn.readmap import LearnedMap
from ..ops.rows import Span, arrange
from ..plan import ModelShape, Plan
from ..state import ModelState
from . import families
from .cache import StateCache
from .config import AnchorConfig
from .inputs import (
    check_cache,
    check_input,
    check_plan,
    check_positions,
    check_starts,
    check_state,
    known_options,
    last_columns,
)
from .layers import run_layer

OWN_MODULES = (Memory, StepSize, Gate, Features, HedgehogMap, ShortConv, SlotWriter, SlotReader, MetaLogits, LearnedMap)
MEMORY_PARTS = ("writers", "readers", "meta_logits")  # under a layer's attention: what is not the backbone's
BLOCK = 1024  # tokens that run through all layers at a time when no gradient is needed


@dataclass
class Captures:
    """Ask for every layer's attention output before its output projection, outputs[layer] [B, T, Hq d], and for its
    normalised input, inputs[layer] [B, T, D]."""

    outputs: dict[int, Tensor] = field(default_factory=dict)
    inputs: dict[int, Tensor] = field(default_factory=dict)


class AnchorForCausalLM(PreTrainedModel, GenerationMixin):
    """A pretrained causal language model with limited attention and shared recurrent slots (arXiv 2611.04327)."""

    config_class = AnchorConfig
    base_model_prefix = "backbone"
    _tied_weights_keys = {"backbone.lm_head.weight": "backbone.model.embed_tokens.weight"}
    _keep_in_fp32_modules_strict = [*MEMORY_PARTS]
    _supports_sdpa = True
    _is_stateful = True
    _no_split_modules = ["LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"]
    adapter_loader: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, config: AnchorConfig, backbone: PreTrainedModel | None = None):
        super().__init__(config)
        inner = config.backbone_config() if backbone is None else backbone.config
        families.check(inner)
        self.plan: Plan = config.read_plan()
        self.shape: ModelShape = config.shape()
        self.backbone = AutoModelForCausalLM.from_config(inner) if backbone is None else backbone
        for index, layer in enumerate(self.backbone.model.layers):
            layer.self_attn = HybridAttention(layer.self_attn, self.shape, index, self.plan)
        if backbone is None:
            self.post_init()
        else:
            with no_init_weights():  # the weights are there; only the book-keeping is wanted
                self.post_init()

    @classmethod
    def from_backbone(cls, backbone: PreTrainedModel, plan: Plan, **config: Any) -> AnchorForCausalLM:
        """Wrap a transformers model in place: its attention layers are replaced, its weights are shared.

        Memory parameters are fp32 (float64 on a float64 backbone). Raises UserError for a family or a plan that
        does not fit.
        """
        families.check(backbone.config)
        shape = ModelShape.from_config(backbone.config)
        families.effective(plan.check(shape), backbone.config).check(shape)
        model = cls(AnchorConfig.of(backbone.config, plan, **config), backbone)
        weight = backbone.model.embed_tokens.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        for parameter in model.memory_parameters().values():
            parameter.data = parameter.data.to(weight.device, wide)
        model.generation_config = backbone.generation_config
        return model.train(backbone.training)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> AnchorForCausalLM:
        """Load a whole folder as transformers does, or an adapter folder together with the base that it names."""
        folder = Path(str(pretrained_model_name_or_path))
        if cls.adapter_loader is not None and (folder / "memory.safetensors").is_file():
            return cls.adapter_loader(folder, **kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def initialize_weights(self) -> None:
        """Memory weights that a checkpoint lacks get their documented start; loaded ones are left alone.

        transformers asks the backbone, a model of its own, about every module inside it, so ours are done here.
        """
        with torch.no_grad(), guard_torch_init_functions():
            for module in self.modules():
                if isinstance(module, OWN_MODULES):
                    module.reset_parameters()
        super().initialize_weights()

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Write the whole model. Raises UserError while adapters are attached: plain transformers cannot read those."""
        if any(".lora_" in name for name, _ in self.named_parameters()):
            raise UserError(
                "the model has LoRA adapters; use anchorlm.save for a small folder, or anchorlm.merge first"
            )
        super().save_pretrained(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.backbone.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.backbone.lm_head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """As in transformers; the stored backbone config follows, or the saved model could not be loaded."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.config.backbone = {**(self.config.backbone or {}), "vocab_size": self.config.vocab_size}
        self.shape = self.config.shape()
        self.backbone.config.vocab_size = self.backbone.vocab_size = self.config.vocab_size
        return embeddings

    def memory_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters of slots, gates, read maps and meta logits by name; all others are the backbone's."""
        own = tuple(f".self_attn.{part}." for part in MEMORY_PARTS)
        return {n: p for n, p in self.named_parameters() if any(part in n for part in own)}

    def new_cache(self) -> StateCache:
        return StateCache(self.plan)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: StateCache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, T, V] for input_ids [B, T], or inputs_embeds [B, T, D].

        attention_mask [B, >= T]: zeros anywhere; a masked token changes nothing. cache: read and advanced.
        labels [B, T]: next-token loss, mean over labels other than -100. `options` as in `hidden`.
        """
        if cache is None and use_cache:
            cache = StateCache(options.get("plan") or self.plan)
        hidden = self.hidden(
            input_ids,
            attention_mask,
            cache,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            **known_options(options),
        )
        kept = hidden[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else hidden[:, logits_to_keep]
        logits = self.backbone.lm_head(kept)
        loss = None if labels is None else next_token_loss(logits, labels)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache)

    def hidden(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: StateCache | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_starts: Tensor | None = None,
        plan: Plan | None = None,
        captures: Captures | None = None,
        checkpoint: bool = False,
        block: int = BLOCK,
    ) -> Tensor:
        """Last hidden states [B, T, D], after the final norm.

        document_starts [B, T] bool: text begins anew there. plan: run these weights under another plan, for instance
        `self.plan.teacher()`. captures: collect attention outputs. checkpoint: recompute activations in the backward
        pass. block: without gradients, a long text runs through all layers this many tokens at a time, so that no
        more than one state a slot and block exists.
        """
        check_input(input_ids, inputs_embeds, block)
        x = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        if x.shape[1] == 0:
            raise ValueError("the input has no token; at least one is needed")
        check_cache(cache)
        mask = last_columns(attention_mask, x, "attention_mask")
        check_starts(document_starts, x)
        plan = self.plan if plan is None else check_plan(plan, self.plan)
        state = cache.state if cache is not None else None
        state = ModelState.empty(x.shape[0], self.shape.layers, x.device) if state is None else state
        if state.rows != x.shape[0]:
            raise ValueError(f"the cache holds {state.rows} rows; the input has {x.shape[0]}")
        check_state(state, families.effective(plan, self.backbone.config))
        check_positions(position_ids, mask, document_starts, state, x)
        size = x.shape[1] if torch.is_grad_enabled() or captures is not None else block
        outputs = []
        for a in range(0, x.shape[1], size):
            part = slice(a, a + size)
            given = (x[:, part], _cut(mask, part), _cut(document_starts, part))
            y, state = self._block(*given, state, plan, captures, checkpoint)
            outputs.append(y)
        if cache is not None:
            cache.advance(state.compact(), x.shape[1])
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)

    def _block(
        self,
        x: Tensor,
        mask: Tensor | None,
        starts: Tensor | None,
        state: ModelState,
        plan: Plan,
        captures: Captures | None,
        checkpoint: bool,
    ) -> tuple[Tensor, ModelState]:
        """One piece of input through all layers: [B, T, D] and the state after it."""
        rows = arrange(mask, starts)
        if rows is None:
            return self._run(x, (x.shape[1],) * x.shape[0], state, plan, captures, checkpoint)
        y, inner = self._run(rows.gather(x), rows.length, rows.enter(state), plan, captures, checkpoint)
        if captures is not None:
            captures.outputs = {i: rows.scatter(o) for i, o in captures.outputs.items()}
            captures.inputs = {i: rows.scatter(x) for i, x in captures.inputs.items()}
        return rows.scatter(y), rows.leave(inner)

    def _run(
        self,
        x: Tensor,
        lengths: tuple[int, ...],
        state: ModelState,
        plan: Plan,
        captures: Captures | None,
        checkpoint: bool,
    ) -> tuple[Tensor, ModelState]:
        inner = self.backbone.model
        step = self.step(x, Span(tuple(state.position.tolist()), lengths, x.shape[1]), plan, checkpoint)
        attention, slots, traces = [], dict(state.slots), {}
        for index, layer in enumerate(inner.layers):
            if checkpoint and torch.is_grad_enabled():
                x, call = recompute(run_layer, layer, x, step, index, state, traces, use_reentrant=False)
            else:
                x, call = run_layer(layer, x, step, index, state, traces)
            attention.append(call.new_attention)
            slots |= call.new_slots
            traces |= call.new_traces
            if captures is not None:
                captures.outputs[index], captures.inputs[index] = call.captured, call.inputs
        position = state.position + torch.tensor(lengths, device=state.position.device)
        return inner.norm(x), ModelState(position, tuple(attention), slots)

    def step(self, x: Tensor, span: Span, plan: Plan, checkpoint: bool) -> Step:
        """What all layers share in one call whose new tokens are x [B, T, D]."""
        positions = span.positions(x.device)

        def rotary(places: Tensor) -> tuple[Tensor, Tensor]:
            return self.backbone.model.rotary_emb(x, places)

        reaches = families.effective(plan, self.backbone.config).layers
        return Step(plan, reaches, span, positions, rotary, rotary(positions), checkpoint)

    @torch.no_grad()
    def prefill(
        self,
        input_ids: Tensor,
        cache: StateCache | None = None,
        block: int = BLOCK,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[Tensor, StateCache]:
        """Read a text of any length, input_ids [B, T]: the logits of its last token [B, V] and the cache.

        progress is called with the number of tokens read after each block.
        """
        if input_ids.shape[1] == 0:
            raise UserError("the text is empty; at least one token is needed")
        cache = self.new_cache() if cache is None else cache
        hidden = None
        for a in range(0, input_ids.shape[1], block):
            hidden = self.hidden(input_ids[:, a : a + block], cache=cache, block=block)
            if progress is not None:
                progress(min(a + block, input_ids.shape[1]))
        assert hidden is not None
        return self.backbone.lm_head(hidden[:, -1]), cache

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict, *args: Any) -> None:
        """`generate` asks for its cache here; only our own can hold a recurrent state."""
        given = model_kwargs.get("cache")
        check_cache(given)
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise ValueError(
                f"cache_implementation {generation_config.cache_implementation!r} cannot hold a recurrent state; "
                "leave it out"
            )
        if given is None and generation_config.use_cache is not False:
            model_kwargs["cache"] = self.new_cache()


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of labels [B, T] shifted by one against logits [B, T, V], in fp32; -100 is left out."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)


def _cut(tensor: Tensor | None, part: slice) -> Tensor | None:
    return None if tensor is None else tensor[:, part]
