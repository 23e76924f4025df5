"""Any model of this package under lm-evaluation-harness (extra `eval`), at its true length.

    python -m anchorlm.eval.lm_eval --model anchorlm --model_args path=DIR --tasks lambada_openai,piqa

takes every option of `lm_eval`. In Python: `simple_evaluate(model=HarnessModel(model, tokenizer), tasks=[...])`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from typing import Any

import torch
from transformers import StoppingCriteriaList, StopStringCriteria

from anchorlm.core import UserError, suggest
from anchorlm.eval.choices import Pair, PairEncoder, score_pairs
from anchorlm.eval.options import check_count
from anchorlm.reading import device_of, position_limit

log = logging.getLogger(__name__)

UNLIMITED = 2**31 - 1  # the harness wants a number
PAIRS_AT_ONCE = 128  # of which the contexts are searched for a shared beginning
MODEL_ARGS = ("path", "dtype", "device", "base", "any_base", "max_length", "block")
NEW_TOKENS = 256  # where a task does not say how much may be written

try:
    harness: Any = importlib.import_module("lm_eval.api.model")
except ImportError as error:
    raise UserError(f"lm-evaluation-harness cannot be imported ({error}): pip install 'anchorlm[eval]'") from None
register = importlib.import_module("lm_eval.api.registry").register_model
utils: Any = importlib.import_module("lm_eval.utils")


@register("anchorlm")
class HarnessModel(harness.TemplateLM):
    """`max_length`: at most what the model can read, which has no limit where no layer sees the whole text.

    truncated: requests so far whose context lost its beginning; each call that cuts any also logs how many.
    """

    def __init__(self, model: Any, tokenizer: Any, max_length: int | None = None, block: int = 512):
        super().__init__()
        for name, value in (("max_length", max_length), ("block", block)):
            check_count(name, value)
        self.model, self.tokenizer, self.block = model, tokenizer, block
        self.encode = PairEncoder(tokenizer, min(filter(None, (max_length, position_limit(model))), default=None))
        self.truncated = 0

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
        """From model_args: path, and any other of MODEL_ARGS. Batch sizes that the harness hands on are not used."""
        from anchorlm.convert.load import load

        given = {k: v for k, v in ((additional_config or {}) | arg_dict).items() if v is not None}
        for name in ("batch_size", "max_batch_size"):
            given.pop(name, None)
        for name in given:
            if name not in MODEL_ARGS:
                raise UserError(f"model_args: {name!r} is unknown; {suggest(name, MODEL_ARGS)}")
        if "path" not in given:
            raise UserError("model_args needs path=DIR")
        own = {name: given.pop(name) for name in ("max_length", "block") if name in given}
        return cls(*load(given.pop("path"), **given), **own)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Any:
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    @property
    def max_length(self) -> int:
        return self.encode.limit or UNLIMITED

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        return self.encode.prefix

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **unused: Any) -> list[int]:
        """Led by the token that the tokenizer itself puts before a text, if it has one."""
        head = [] if self.encode.bos is None or add_special_tokens is False else [self.encode.bos]
        return [*head, *self.encode.ids(string)]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **unused: Any) -> list[tuple[float, bool]]:
        pairs = [self.encode.fit(context, continuation) for _, context, continuation in requests]
        self._report(sum(pair.cut for pair in pairs), len(pairs))
        scores = self._scores(pairs)
        for (key, _, _), score in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", key, score)
        return scores

    def loglikelihood_rolling(self, requests: Sequence[Any], **unused: Any) -> list[float]:
        """Log-likelihood of whole texts; one longer than the model can read, in pieces that do not overlap."""
        return [sum(score for score, _ in self._scores(self._pieces(request.args[0]))) for request in requests]

    def generate_until(self, requests: Sequence[Any], **unused: Any) -> list[str]:
        """What the model writes after each context, up to the first of the texts `until`."""
        return [self._write(*request.args) for request in requests]

    def _scores(self, pairs: list[Pair]) -> list[tuple[float, bool]]:
        starts = range(0, len(pairs), PAIRS_AT_ONCE)
        return [s for at in starts for s in score_pairs(self.model, pairs[at : at + PAIRS_AT_ONCE], self.block)]

    def _pieces(self, text: str) -> list[Pair]:
        windows = utils.get_rolling_token_windows(
            token_list=self.encode.ids(text), prefix_token=self.encode.prefix, max_seq_len=self.max_length,
            context_len=1,
        )  # fmt: skip
        return [Pair(tuple(context), tuple(rest)) for context, rest in map(utils.make_disjoint_window, windows)]

    def _write(self, context: str, options: dict[str, Any]) -> str:
        options = {"do_sample": False, **options}
        until, count = options.pop("until", None) or [], int(options.pop("max_gen_toks", NEW_TOKENS))
        until = [until] if isinstance(until, str) else [text for text in until if text]
        if not options["do_sample"]:
            options = {k: v for k, v in options.items() if k not in ("temperature", "top_p", "top_k")}
        ids, room = self.tok_encode(context), max(1, self.max_length - count)
        self._report(int(len(ids) > room), 1)
        kept = torch.tensor([ids[-room:]], device=device_of(self.model))
        stops = StoppingCriteriaList([StopStringCriteria(self.tokenizer, until)] if until else [])
        end = self.tokenizer.eos_token_id
        out = self.model.generate(kept, max_new_tokens=count, pad_token_id=end, stopping_criteria=stops, **options)
        text = self.tokenizer.decode(out[0, kept.shape[1] :], skip_special_tokens=True)
        return text[: min([text.find(stop) for stop in until if stop in text], default=len(text))]

    def _report(self, cut: int, count: int) -> None:
        if cut:
            self.truncated += cut
            log.warning("lm-eval: %d of %d requests lost the beginning of their context: the model reads %s tokens",
                        cut, count, f"{self.max_length:,}")  # fmt: skip


if __name__ == "__main__":
    importlib.import_module("lm_eval.__main__").cli_evaluate()
