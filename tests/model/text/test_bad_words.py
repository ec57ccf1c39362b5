"""Banned words are tokenized once for all requests that ban the same, whatever ends meanwhile."""

import gc
import weakref

from jaxinfer.model.text import bad_words
from jaxinfer.model.text.bad_words import bad_word_ids
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.text.small_tokenizer import build_backend


def test_the_tokens_of_a_list_of_words_are_those_of_each_spelling():
    tokenizer = Tokenizer(build_backend())
    spellings = ["the", " the", "\nthe", "a b", " a b"]
    expected = tuple(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spellings)
    assert bad_word_ids(["the", "\nthe", "a b"], tokenizer) == expected
    assert bad_word_ids([], tokenizer) == ()


def test_a_list_of_words_is_tokenized_once_and_the_last_lists_are_kept(monkeypatch):
    tokenizer = Tokenizer(build_backend())
    encode, calls = tokenizer.encode_following, []
    monkeypatch.setattr(
        tokenizer,
        "encode_following",
        lambda texts: (calls.append(texts), encode(texts))[1],
    )
    lists = [[f"word {i}"] for i in range(3 * bad_words._MOST_KEPT)]
    first = [bad_word_ids(words, tokenizer) for words in lists for _ in range(3)][::3]
    assert len(calls) == len(lists)
    assert [bad_word_ids(words, tokenizer) for words in lists] == first
    assert len(bad_words._kept[tokenizer]) == bad_words._MOST_KEPT


def test_a_tokenizer_that_is_dropped_is_not_kept():
    tokenizer = Tokenizer(build_backend())
    bad_word_ids(["the"], tokenizer)
    dropped = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert dropped() is None
