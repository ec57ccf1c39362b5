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
