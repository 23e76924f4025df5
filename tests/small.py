"""Tiny models and tokenizers for tests: random weights, one token a byte, built in milliseconds."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def char_tokenizer(bos: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level tokenizer without merges: one token a byte, then <eos> and, if asked, a <bos> put before a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)} | {"<eos>": 256, "<bos>": 257}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if bos:
        core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 257)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", bos_token="<bos>")


def tiny_llama(vocab: int = 258, max_positions: int = 512, layers: int = 2, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=max_positions, eos_token_id=256, bos_token_id=257,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()
