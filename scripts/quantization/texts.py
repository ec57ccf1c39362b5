"""Texts that quantized weights are judged on, as token ids."""

from typing import TYPE_CHECKING

from scripts.evaluation.items.mixture import held_out_items

if TYPE_CHECKING:
    from jaxinfer.model.text.tokenizer import Tokenizer

ENGLISH = "CPython's pydoc_data.topics, its language reference"
WINDOW_TOKENS = 512


def stories(tokenizer: "Tokenizer", count: int) -> list[list[int]]:
    """Held-out stories, of which the bundled model's training saw none."""
    return [tokenizer.encode(item.answer) for item in held_out_items("story", count)]


def english_windows(tokenizer: "Tokenizer", count: int) -> list[list[int]]:
    """The first windows of `WINDOW_TOKENS` tokens of English that comes with every CPython.

    Its topics stand in the order of their names, one after the other.
    """
    from pydoc_data.topics import topics

    token_ids = tokenizer.encode("\n".join(topics[name] for name in sorted(topics)))
    starts = range(0, min(count * WINDOW_TOKENS, len(token_ids)), WINDOW_TOKENS)
    return [token_ids[start : start + WINDOW_TOKENS] for start in starts]
