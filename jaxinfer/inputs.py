"""Typed dictionaries for prompts, under vLLM's names: `TextPrompt` and `TokensPrompt`."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text.

    Attributes:
        prompt: the text.
        cache_salt: shares cached keys and values only with prompts of the same salt.
    """

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids.

    Attributes:
        prompt_token_ids: at least one.
        prompt: their text; only passed on to the output.
        cache_salt: as in `TextPrompt`.
    """

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


def tokens_prompt(token_ids: Sequence[int], cache_salt: str | None) -> TokensPrompt:
    """A prompt of token ids; without a salt if that is None."""
    if cache_salt is None:
        return TokensPrompt(prompt_token_ids=token_ids)
    return TokensPrompt(prompt_token_ids=token_ids, cache_salt=cache_salt)
