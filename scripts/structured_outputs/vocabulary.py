"""A synthetic tokenizer of any size, for models of random weights."""

import random

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxinfer.model.text.tokenizer import Tokenizer

_SPACE = "Ġ"  # a space, in byte-level BPE
_LONGEST = 12
_END = "<|im_end|>"


def synthetic_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level BPE with merges of letters, digits, spaces and JSON's punctuation, drawn once.

    Args:
        vocab_size: V; the last token ends an answer.
    """
    rng = random.Random(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)}
    words = [char for char in alphabet if char.isascii() and (char.isalnum() or char in '{}[]":,')]
    words += [_SPACE] * 8
    merges = []
    while len(vocab) < vocab_size - 1:
        pair = rng.choice(words), rng.choice(words)
        word = "".join(pair)
        if word not in vocab and len(word) <= _LONGEST:
            vocab[word] = len(vocab)
            merges.append(pair)
            words.append(word)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_END])
    return Tokenizer(backend, eos_token_ids=[vocab_size - 1])
