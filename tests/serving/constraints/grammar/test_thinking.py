"""Where a thinking ends, its grammar begins."""

import pytest

from jaxinfer.model.text.thinking_tokens import thinking_tokens
from jaxinfer.serving.constraints.grammar.thinking import ThinkingMatcher
from tests.serving.constraints.grammar.grammars import bundled_tokenizer, matcher

TOKENS = thinking_tokens(bundled_tokenizer(), bundled_tokenizer().vocab_size)


def ids(text):
    return bundled_tokenizer().encode(text, add_special_tokens=False)


@pytest.mark.parametrize("all_at_once", [True, False])
def test_a_call_ends_thoughts_and_is_the_grammar_s(all_at_once):
    own, [b] = matcher(grammar='start: "a"+ | <tool_call> "b"'), ids("b")
    guided, answer = ThinkingMatcher(own, TOKENS, "open", calls=True), [5, 6, TOKENS.call]
    for tokens in [answer] if all_at_once else [[token] for token in answer]:
        assert not guided.wants_mask
        guided.follow(answer[: answer.index(tokens[-1]) + 1])
    assert guided.wants_mask
    assert guided.forced_tokens() == [b]
    guided.follow([*answer, b])
    assert guided.state.is_accepting()
