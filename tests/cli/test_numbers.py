"""Numbers on a command line: what none is, or no size of anything, is told by the name of its flag, with its dashes."""

import pytest
import typer

from anchorlm.analyze.budget import parse_size
from anchorlm.cli.__main__ import app
from anchorlm.compare.budget import parse_tokens
from anchorlm.core import MOST, UserError
from anchorlm.rules import number_range

NEEDED = {
    "convert": ("base", "-o", "out"), "place": ("base",), "eval": ("dir",), "analyze": ("dir",), "generate": ("dir",),
    "compare": ("base",), "merge": ("dir", "-o", "out"), "train": ("dir",), "report": ("run",),
}  # fmt: skip
FLAGS = [
    (verb, param.opts[0])
    for verb, command in typer.main.get_command(app).commands.items()
    for param in command.params
    if param.type_descriptor.annotation in (int, float)
]
NO_NUMBERS = ["-1", "x", "", "\u0663", "\u0967\u0968", "\uff11", "9" * 20, "9" * 5000, "1e3", "nan", "1.5", "0x10"]
OTHER_DIGITS = ["\u0663", "\u0663M", "1\u0663", "\uff11\uff10", "\u00b2", "1.\u0663", "1_\u0663"]
NO_TOKENS = ["0", "-1", "9999999999B", "9" * 40, "9" * 5000, "1" + "0" * 400 + "M", "1T", "", "1e6", "\u212a",
             "1\u212a", str(MOST + 1)]  # fmt: skip
NO_RANGES = ["", "-", "7-", "-7", "1-2-3", "1,2", "9" * 10, "9" * 5000, "0-" + "9" * 10]


def test_every_verb_is_looked_at():
    assert {verb for verb, _ in FLAGS} >= {"place", "eval", "analyze", "generate", "results", "compare", "reproduce"}


@pytest.mark.parametrize("verb, flag", FLAGS, ids=[" ".join(row) for row in FLAGS])
def test_what_is_no_number_is_told_by_its_flag(call, verb, flag):
    whole = flag not in ("--temperature", "--top-p")
    for text in NO_NUMBERS if whole else [text for text in NO_NUMBERS if text not in ("1e3", "1.5")]:
        given = [flag, text] if len(text) % 2 else [f"{flag}={text}"]
        code, shown, error = call(verb, *NEEDED.get(verb, ()), *given, *(["--prompt", "x"] * (verb == "generate")))
        assert code == 2 and shown == "" and error.count("\n") == 1 and flag in error, (text, error)


@pytest.mark.parametrize("text", [*NO_TOKENS, *OTHER_DIGITS])
def test_what_is_no_number_of_tokens(text):
    with pytest.raises(UserError, match="--tokens .* is no number of tokens from 1 to 1,000,000,000,000,000; write 1M"):
        parse_tokens(text)


def test_the_most_tokens_and_bytes():
    assert parse_tokens(MOST) == parse_tokens("1_000_000B") == parse_size("1000000GB") == MOST
    assert parse_tokens("0.3M") == 300_000 and parse_tokens(" 1.5 k ") == 1500


@pytest.mark.parametrize("text", ["9999999999GB", "9" * 400, str(MOST + 1), *OTHER_DIGITS])
def test_what_is_no_size(text):
    with pytest.raises(UserError, match="--budget .* is not a size up to 1,000,000,000,000,000"):
        parse_size(text)


@pytest.mark.parametrize("text", [*NO_RANGES, *OTHER_DIGITS])
def test_what_is_no_range(text):
    assert number_range(text) is None
    assert number_range("18-20") == range(18, 21) and number_range(" 7 ") == range(7, 8)


LISTS = [
    ("compare base --data x --methods", "--methods"), ("compare base --data x --rows", "--rows"),
    ("compare base --data x --seeds", "--seeds"), ("compare base --data x --lengths", "--lengths"),
    ("results smollm2 --data x --rows", "--rows"), ("results core --lengths", "--lengths"),
    ("mad --models", "--models"),
    ("mad --tasks", "--tasks"), ("reproduce", "item"), ("eval dir --suite", "no suite named"),
    ("analyze dir --what", "no analysis named"),
]  # fmt: skip


@pytest.mark.parametrize("line, told", LISTS, ids=[line for line, _ in LISTS])
def test_a_list_that_names_nothing_is_not_the_default(call, folder, line, told):
    words = [str(folder) if word == "dir" else word for word in line.split()]
    for text in (",", "", " , ,"):
        code, shown, error = call(*words, text)
        assert code == 2 and shown == "" and error.count("\n") == 1 and told in error, error


@pytest.mark.parametrize("text", ["\u0663", "9" * 19, "9" * 5000, "1.5", "-1", "x"])
def test_what_is_no_number_of_a_list(call, text):
    for line in (["compare", "base", "--data", "x", "--seeds"], ["compare", "base", "--data", "x", "--lengths"],
                 ["results", "core", "--lengths"]):  # fmt: skip
        code, shown, error = call(*line, f"1,{text}")
        assert code == 2 and shown == "" and error.count("\n") == 1 and f"{line[-1]} " in error, error
