"""The spellings of a banned word, with and without a leading space, and the tokens of each."""

import contextlib
import weakref
from collections.abc import Sequence

from jaxinfer.model.text.tokenizer import Tokenizer

BadWordIds = tuple[tuple[int, ...], ...]

_MOST_KEPT = 16
_kept: weakref.WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], BadWordIds]] = (
    weakref.WeakKeyDictionary()
)


def bad_word_spellings(word: str) -> list[str]:
    """The spellings that `bad_words` bans: the word at the start of a text, and after a space.

    A word with leading white space has one spelling: it already states what precedes it.
    """
    return [word] if word[:1].isspace() else [word, " " + word]


def bad_word_ids(words: Sequence[str], tokenizer: Tokenizer) -> BadWordIds:
    """Token ids of all spellings of all words.

    The last lists of words are kept: a request of many prompts has one list for all of them.
    """
    kept, key = _kept.setdefault(tokenizer, {}), tuple(words)
    ids = kept.get(key)
    if ids is None:
        spellings = [text for word in key for text in bad_word_spellings(word)]
        ids = tuple(map(tuple, tokenizer.encode_following(spellings)))
        if len(kept) >= _MOST_KEPT:
            with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread did
                del kept[next(iter(kept))]
        kept[key] = ids
    return ids
