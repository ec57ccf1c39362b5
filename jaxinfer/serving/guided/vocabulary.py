"""A model's vocabulary for llguidance: the bytes of each token, and the end tokens."""

from collections.abc import Collection
from typing import Any

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.guided.backend import llguidance


def grammar_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]
) -> Any:
    """An `llguidance.LLTokenizer`; takes 1 s for 150,000 tokens.

    Args:
        tokenizer: of the model.
        vocab_size: V, width of the logits; masks are at least as wide.
        eos_token_ids: tokens that end an answer; a mask allows them where the grammar may end.

    Raises:
        ValueError: there is no token that could end an answer.
        MissingPackageError: llguidance is not installed.
    """
    if not eos_token_ids:
        raise ValueError(
            "structured_outputs: the model has no end-of-sequence token, so that no answer could "
            "end where its grammar does"
        )
    return llguidance().LLTokenizer(
        tokenizer.to_json(),
        n_vocab=max(vocab_size, tokenizer.vocab_size),
        eos_token=sorted(eos_token_ids),
    )
