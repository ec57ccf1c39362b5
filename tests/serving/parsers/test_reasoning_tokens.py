"""Tokens of reasoning, counted one by one, whatever tokens spell the tags."""

import pytest

from jaxinfer.serving.parsers.reasoning_tokens import ReasoningTokens


class Pieces:
    """A tokenizer whose token ids are places in a list of texts."""

    def __init__(self, *texts):
        self._texts = texts

    def token_bytes(self, token_id):
        return self._texts[token_id].encode()


@pytest.mark.parametrize(
    ("texts", "is_open", "count"),
    [
        (["<think>", "\n", "hm", "\n", "</think>", "\n", "yes"], False, 3),
        (["hm", "\n", "</think>", "yes", "<think>", "no", "</think>"], True, 2),
        (["\n", "<think>", "hm"], False, 1),
        (["<th", "ink>", "日本", "hm", "</thi", "nk>", "yes"], False, 3),
        (["yes", "<think>", "hm", "</think>"], False, 0),
        (["yes"], False, 0),
        ([], True, 0),
    ],
)
def test_tokens_between_the_tags_count(texts, is_open, count):
    for length in (1, 2, 100):
        tokens = ReasoningTokens("qwen3", Pieces(*texts), is_open=is_open)
        for start in range(0, len(texts), length):
            tokens.add(range(start, min(start + length, len(texts))))
        assert tokens.count == count
