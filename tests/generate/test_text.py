import pytest
import torch

from anchorlm.convert.load import load
from anchorlm.core import UserError
from anchorlm.generate.sampling import Sampler, nucleus
from anchorlm.generate.stops import TextStream
from anchorlm.generate.text import Options, check_length, encode, generate_text
from hybrids import make
from small import char_tokenizer

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def test_greedy_text_equals_generate(hybrid):
    tokenizer = char_tokenizer()
    ids = torch.tensor([encode(tokenizer, "once upon a time there was a window")])
    expected = hybrid.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    shown = []
    result = generate_text(
        hybrid, tokenizer, "once upon a time there was a window", options=Options(20, block=7), on_text=shown.append
    )
    assert result.text == tokenizer.decode(expected, skip_special_tokens=True)
    assert "".join(shown) == result.text
    assert result.tokens_read == ids.shape[1] and result.finish == "length" and result.tokens_written == 20


def test_a_long_file_is_read_in_blocks_at_constant_state(hybrid):
    tokenizer, blocks = char_tokenizer(), []
    sizes = []
    for length in (600, 1200):
        result = generate_text(
            hybrid,
            tokenizer,
            "?",
            "x" * length,
            Options(4, block=100),
            progress=lambda done, total: blocks.append(done),
        )
        assert result.tokens_read == length + 3 > hybrid.shape.max_positions
        sizes.append(sum(result.state_bytes.values()) - result.state_bytes["chunk buffer"])
    assert sizes[0] == sizes[1]
    assert blocks[:3] == [100, 200, 300]


def test_a_full_attention_model_is_not_read_beyond_its_positions(base_folder):
    model, tokenizer = load(str(base_folder), "float32")
    with pytest.raises(UserError, match="full attention in all 4 layers was trained for 512 positions"):
        generate_text(model, tokenizer, "?", "x" * 600, Options(4))
    result = generate_text(model, tokenizer, "?", "x" * 600, Options(4, force=True))
    assert "unreliable" in result.warnings[0]


def test_a_mixed_model_names_its_full_layers(base_folder):
    model = make(base_folder, "anchor-hybrid")
    with pytest.raises(UserError, match="layers 3 was"):
        check_length(model, 513)
    assert check_length(model, 512) == []


def test_chat_template_is_used_unless_raw():
    tokenizer = char_tokenizer()
    tokenizer.chat_template = CHAT
    assert tokenizer.decode(encode(tokenizer, "why?", "a book")) == "<user>a book\n\nwhy?<assistant>"
    assert tokenizer.decode(encode(tokenizer, "why?", "a book", raw=True)) == "a book\n\nwhy?"


@pytest.mark.parametrize("bos", [False, True])
def test_at_most_one_bos(bos):
    tokenizer = char_tokenizer(bos=bos)
    tokenizer.chat_template = "<bos>" + CHAT
    for raw in (False, True):
        assert encode(tokenizer, "x", raw=raw).count(257) == (1 if not raw else int(bos))


@pytest.mark.parametrize(
    "options, line",
    [
        ({"max_new_tokens": -1}, "max-new-tokens is -1"),
        ({"max_new_tokens": 1_000_001}, "max-new-tokens is 1000001; it must be a whole number of at most 1,000,000"),
        ({"block": 2**31}, "block is 2147483648; it must be a whole number of at most"),
        ({"limit": 2**31}, "limit is 2147483648"),
        ({"every": 2**31}, "figures-every is 2147483648"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"top_p": 0.0}, "top-p is 0"),
        ({"top_p": 1.5}, "top-p is 1.5"),
        ({"stop": ("",)}, "stop string is empty"),
        ({"block": 0}, "block is 0"),
    ],
)
def test_options_are_checked(options, line):
    with pytest.raises(UserError, match=line):
        Options(**options).check()


def test_empty_input_is_refused():
    with pytest.raises(UserError, match="empty"):
        encode(char_tokenizer(), " ", "")


def _stream(pieces, stops=()):
    tokenizer, shown = char_tokenizer(), []
    stream = TextStream(tokenizer, stops, shown.append)
    for token in tokenizer(pieces)["input_ids"]:
        if stream.add(token):
            break
    else:
        stream.close()
    return stream, shown


def test_a_stop_string_is_cut_and_never_half_shown():
    stream, shown = _stream("abc##def", ("##",))
    assert stream.text == "abc" and stream.finish == "stop"
    assert "".join(shown) == "abc"
    stream, shown = _stream("a#b#", ("##",))
    assert "".join(shown) == "a#b#" and shown == ["a", "#b", "#"]


def test_the_earliest_of_several_stops_counts():
    assert _stream("one two three", ("three", "two"))[0].text == "one "


def test_a_character_of_several_bytes_appears_whole():
    stream, shown = _stream("né 😀!")
    assert "".join(shown) == stream.text == "né 😀!"
    assert "\ufffd" not in "".join(shown)


def test_sampling_follows_the_seed_and_top_p():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    draws = [[int(sampler(logits)) for _ in range(20)] for sampler in (Sampler(1.0, seed=3), Sampler(1.0, seed=3))]
    assert draws[0] == draws[1] and len(set(draws[0])) > 3
    assert {int(Sampler(1.0, 1e-6, seed)(logits)) for seed in range(20)} == {int(logits.argmax())}
    kept = nucleus(torch.tensor([[0.5, 0.3, 0.15, 0.05]]), 0.6)
    assert (kept > 0).tolist() == [[True, True, False, False]]


def test_logits_that_are_not_numbers_stop_the_run():
    with pytest.raises(UserError, match="NaN"):
        Sampler()(torch.full((1, 4), float("nan")))


def test_end_of_text_ends(hybrid):
    tokenizer = char_tokenizer()
    with torch.no_grad():
        hybrid.backbone.lm_head.weight.zero_()
    hybrid.generation_config.eos_token_id = [0, 256]
    result = generate_text(hybrid, tokenizer, "abc", options=Options(5))
    assert result.finish == "end" and result.text == "" and result.tokens_written == 0 and result.ms_per_token is None
