"""A synthetic tokenizer of any size, made up like those of real models, for random weights.

The time of a mask depends on how many tokens hold what ends a JSON string. In the vocabulary of
131,072 tokens that the package mistral-common ships a quotation mark is in 0.4% of all tokens, any
punctuation in 8%, 57% begin with a space, and a token has 6.8 bytes on average.
"""

import random
import string
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxinfer.model.text.tokenizer import Tokenizer

_SPACE = "Ġ"  # a space, in byte-level BPE
_LENGTHS = range(2, 12)  # of a new token, at most; drawn evenly
_TRIES = 100  # to find a new token of a length, before it may be longer
_END = "<|im_end|>"
_SYMBOLS = "0123456789.,:;-_/()[]{}=<>+*!?'#&%$@|~^`"
_SHARES = {"quoting": 0.004, "symbols": 0.076, "spaced": 0.57, "letters": 0.35}


def synthetic_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level BPE with merges of letters and, less often, of symbols, drawn once.

    Args:
        vocab_size: V; the last token ends an answer.
    """
    rng = random.Random(0)
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters, symbols = list(string.ascii_letters), list(_SYMBOLS)
    words = {"quoting": ['"', "\\"], "symbols": symbols, "spaced": [_SPACE], "letters": letters}
    ends = {"quoting": symbols, "symbols": symbols, "spaced": letters, "letters": letters}
    merges = []
    for kind in rng.choices(list(_SHARES), list(_SHARES.values()), k=vocab_size - 1 - len(vocab)):
        pair = _new_pair(rng, words[kind], ends[kind], vocab)
        word = "".join(pair)
        vocab[word] = len(vocab)
        merges.append(pair)
        words[kind].append(word)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([_END])
    return Tokenizer(backend, eos_token_ids=[vocab_size - 1])


def _new_pair(
    rng: random.Random, begins: Sequence[str], ends: Sequence[str], vocab: dict[str, int]
) -> tuple[str, str]:
    """Two tokens that together are none yet."""
    length, tries = rng.choice(_LENGTHS), 0
    while True:
        begin, end = rng.choice(begins), rng.choice(ends)
        if len(begin) + len(end) <= length and begin + end not in vocab:
            return begin, end
        tries += 1
        length += tries % _TRIES == 0  # shorter ones may all be taken
