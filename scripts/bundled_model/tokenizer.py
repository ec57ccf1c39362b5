"""Trains the byte-level BPE tokenizer with Qwen3's rules, on the bundled model's own text."""

import re
from collections.abc import Iterable, Iterator

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VOCAB_SIZE = 2048
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
TAG_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""One token each, but ordinary text where special tokens are skipped, as in Qwen3."""

# Qwen2's and Qwen3's pre-tokenization: contractions, words with the character before them, single
# digits, punctuation, line ends, blanks.
PRE_TOKENIZATION = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learns `VOCAB_SIZE` tokens; the named tokens come last, as in Qwen3's vocabulary.

    Args:
      texts: the text to learn merges from; named tokens in it are left out.

    Raises:
      ValueError: the text has too few different words for `VOCAB_SIZE` tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZATION), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    named = len(SPECIAL_TOKENS) + len(TAG_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - named,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_without_named_tokens(texts), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in TAG_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"the text gave {tokenizer.get_vocab_size()} tokens, {VOCAB_SIZE} are wanted: use more"
        )
    return tokenizer


def known_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must be there.

    Raises:
      ValueError: it is not.
    """
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise ValueError(f"the tokenizer has no token {token!r}")
    return token_id


def _without_named_tokens(texts: Iterable[str]) -> Iterator[str]:
    """The pieces between named tokens, so that nothing learns to merge into their spelling."""
    named = re.compile("|".join(map(re.escape, (*SPECIAL_TOKENS, *TAG_TOKENS))))
    for text in texts:
        yield from filter(None, named.split(text))
