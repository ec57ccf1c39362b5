"""Checks of prompts and parameters that are text, before they are tokenized."""

from typing import NamedTuple

from jaxinfer.errors import PromptTooLongError
from jaxinfer.model.text.bad_words import BadWordIds, bad_word_ids
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams


class ContextLimits(NamedTuple):
    """Most tokens of prompt and output: the engine's, and the model's, None if it is the same."""

    max_model_len: int
    longest_context: int | None

    @property
    def advice(self) -> str:
        """What to do about a prompt that is too long."""
        if self.max_model_len < (self.longest_context or 0):
            return "shorten it or raise max_model_len"
        return "shorten it: this is the model's longest context"

    def error(self, name: str, num_tokens: int, num_outputs: int) -> PromptTooLongError:
        """The error of a prompt that leaves no room for the outputs."""
        most = self.max_model_len
        text = f"{name} has {num_tokens} tokens, but max_model_len is {most}"
        if num_outputs:
            text = (
                f"{name} has {num_tokens} tokens, which leaves no room for {num_outputs} more "
                f"within max_model_len {most}"
            )
        return PromptTooLongError(f"{text}; {self.advice}", num_tokens=num_tokens)


def check_text(
    name: str,
    text: str,
    tokenizer: Tokenizer | None,
    limits: ContextLimits,
    *,
    num_outputs: int,
    may_be_longer: bool,
) -> Tokenizer:
    """Refuse text as `PromptReader.check_text` does; returns the tokenizer."""
    if tokenizer is None:
        raise ValueError(f"{name} is text, and this engine has no tokenizer; give token ids")
    max_model_len = limits.max_model_len
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode text: {error.reason}") from None
    if size > max_model_len and not may_be_longer:  # fewer bytes always fit
        least = tokenizer.least_tokens(text)
        if least + num_outputs > max_model_len:
            raise PromptTooLongError(
                f"{name} has {size} bytes, at least {least} tokens, but max_model_len is "
                f"{max_model_len}; {limits.advice}",
                num_tokens=least,
                is_exact=False,
            )
    return tokenizer


def check_bad_words(params: SamplingParams, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse words that the model can't write, and words that ban all allowed tokens."""

    def ids_of(*words: str) -> BadWordIds:
        return bad_word_ids(words, tokenizer)

    def is_known(*words: str) -> bool:
        return max((max(ids) for ids in ids_of(*words) if ids), default=0) < vocab_size

    words, allowed = params.bad_words or (), params.allowed_token_ids
    if not is_known(*words):
        word = next(word for word in words if not is_known(word))
        raise ValueError(f"bad_words: {word!r} has tokens that the model does not have")
    if allowed is not None and set(ids_of(*words)).issuperset((each,) for each in allowed):
        raise ValueError("allowed_token_ids: bad_words bans all of them; allow another")
