"""A model's vocabulary for llguidance: each token's bytes, and a tokenizer for plain text only.

A grammar gets an added token (`<think>`, `<|im_end|>`) only by name. Text that spells one is
tokenized as characters, so that forced text never becomes a tag or the end of an answer.
"""

import json
from collections.abc import Collection
from typing import Any

import tokenizers

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.constraints.grammar.backend import llguidance


def grammar_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]
) -> Any:
    """An `llguidance.LLTokenizer`; takes 1 s for 150,000 tokens.

    Args:
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
    library = llguidance()
    ends = sorted(eos_token_ids)
    text = _TextTokenizer(tokenizer, max(vocab_size, tokenizer.vocab_size), ends[0])
    return library.LLTokenizer(library.TokenizerWrapper(text), eos_token=ends)


class _TextTokenizer:
    """The tokenizer interface that llguidance expects, under its names.

    The text of an answer goes on from its prompt, and so has no space that a tokenizer adds.

    Args:
        num_tokens: width of the vocabulary; ids that the tokenizer lacks have no bytes.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, num_tokens: int, eos_token_id: int) -> None:
        written = json.loads(tokenizer.to_json(following=True))
        self.eos_token_id = eos_token_id
        self.special_token_ids = [each["id"] for each in written["added_tokens"]]
        self.tokens = [tokenizer.token_bytes(i) for i in range(num_tokens)]
        plain = written | {"added_tokens": [], "truncation": None, "padding": None}
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(plain))

    def __call__(self, text: bytes) -> list[int]:
        """Token ids of a text in UTF-8."""
        return self._plain.encode(text.decode(), add_special_tokens=False).ids
