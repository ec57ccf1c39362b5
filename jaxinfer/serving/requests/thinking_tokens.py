"""The tokens that begin and end a model's thinking."""

from dataclasses import dataclass

from jaxinfer.model.text.tokenizer import Tokenizer

NO_THINKING = "this model has no tokens <think> and </think>; leave it out"

_OPEN, _CLOSE = "<think>", "</think>"
_ENDING = "\n</think>\n\n"  # as chat templates write it


@dataclass(frozen=True)
class ThinkingTokens:
    """Token ids.

    Attributes:
        open: of `<think>`.
        close: of `</think>`.
        ending: of all that ends thinking, line breaks included.
    """

    open: int
    close: int
    ending: tuple[int, ...]


def thinking_tokens(tokenizer: Tokenizer, vocab_size: int) -> ThinkingTokens | None:
    """The tokens of a tokenizer, if its model thinks.

    Args:
        tokenizer: of the model.
        vocab_size: V of its logits.

    Returns:
        None unless `<think>` and `</think>` are a token each that the model has.
    """
    opening, closing, ending = (_encode(tokenizer, text) for text in (_OPEN, _CLOSE, _ENDING))
    if len(opening) != 1 or len(closing) != 1:
        return None
    if closing[0] not in ending:
        ending = closing
    if max(opening + ending) >= vocab_size:
        return None
    return ThinkingTokens(opening[0], closing[0], tuple(ending))


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)
