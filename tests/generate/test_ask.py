"""A text read once answers as if it had been read for each question, and every question starts from one state."""

import pytest
import torch
from test_text import CHAT

from anchorlm.convert.load import load
from anchorlm.core import UserError
from anchorlm.generate.ask import read_text
from anchorlm.generate.text import Options, generate_text
from anchorlm.reading import prefill, rewind
from hybrids import hybrid
from small import char_tokenizer, tiny_llama

__all__ = ["hybrid"]
TEXT = "once upon a time there was a window, and behind it a ship. " * 3 + "\n"


@pytest.mark.parametrize("chat", [None, CHAT])
@pytest.mark.parametrize("bos", [False, True])
def test_each_answer_equals_reading_all_of_it(hybrid, chat, bos):
    tokenizer = char_tokenizer(bos=bos)
    tokenizer.chat_template = chat
    done = read_text(hybrid, tokenizer, TEXT, Options(8))
    for question in ("who?", "where is the ship?", "who?"):
        ours, whole = done.ask(question), generate_text(hybrid, tokenizer, question, TEXT, Options(8))
        assert ours.text == whole.text and ours.tokens_read == whole.tokens_read
        assert ours.state_bytes == whole.state_bytes


def test_the_text_itself_is_read_once(hybrid, monkeypatch):
    done, seen = read_text(hybrid, char_tokenizer(), TEXT, Options(2)), []
    hybrid.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    result = done.ask("who?")
    assert result.tokens_read > len(TEXT) and len(seen) <= 3 and "read_seconds" in result.to_dict()


def test_no_question_goes_on_with_the_text_and_other_options_hold_for_one_answer(hybrid):
    done = read_text(hybrid, char_tokenizer(), TEXT, Options(8, raw=True, limit=50, every=20))
    assert done.tokens <= 50 and len(done.points) == 3
    whole = generate_text(hybrid, char_tokenizer(), "", TEXT, Options(8, raw=True, limit=50))
    assert done.ask("").text == whole.text and len(done.ask("", Options(3)).options) == len(whole.options)
    assert done.ask("", Options(3)).tokens_written == 3


def test_mistakes(base_folder, hybrid):
    with pytest.raises(UserError, match="empty"):
        read_text(hybrid, char_tokenizer(), " ")
    teacher, tokenizer = load(str(base_folder), "float32")
    with pytest.raises(UserError, match="512 positions"):
        read_text(teacher, tokenizer, "x" * 600)
    done = read_text(teacher, tokenizer, "x" * 500)
    with pytest.raises(UserError, match="512 positions"):
        done.ask("and why?", Options(8))
    tokenizer.chat_template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    with pytest.raises(UserError, match="changes the text"):
        read_text(hybrid, tokenizer, TEXT)


def test_a_cache_of_transformers_can_be_rewound_more_than_once():
    model, ids = tiny_llama(), torch.arange(12)[None]
    _, cache = prefill(model, ids)
    again = rewind(cache)
    answers = [prefill(model, ids[:, :3], cache=again())[0] for _ in range(2)]
    assert torch.equal(*answers)
