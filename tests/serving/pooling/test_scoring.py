"""What is scored: prompts, and continuations of contexts."""

import pytest

from jaxinfer.errors import StepError
from jaxinfer.logprobs import Logprob
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.pooling.scoring import read_score_inputs, score_output
from jaxinfer.serving.requests.prompts import PromptReader
from tests.model.text.small_tokenizer import build_backend

TOKENIZER = Tokenizer(build_backend())
READER = PromptReader(TOKENIZER, vocab_size=TOKENIZER.vocab_size, max_model_len=64)


def read(inputs):
    prompts, starts = read_score_inputs(inputs, READER)
    return [(prompt.token_ids, start) for prompt, start in zip(prompts, starts, strict=True)]


def test_prompts_count_from_their_second_token():
    assert read([[1, 2], [3]]) == [([1, 2], 1), ([3], 1)]
    assert read((1, 2)) == [([1, 2], 1)]


def test_continuations_count_from_their_first_token():
    assert read(([1, 2], [3])) == [([1, 2, 3], 2)]
    assert read([([1], [2, 3]), ((4, 5), (6,))]) == [([1, 2, 3], 1), ([4, 5, 6], 2)]


def test_tokens_that_join_over_the_border_belong_to_the_continuation():
    whole = TOKENIZER.encode("the forest")
    ((token_ids, start),) = read(("the for", "est"))
    assert token_ids == whole
    assert whole[:start] == TOKENIZER.encode("the for")[:start]
    assert TOKENIZER.decode(whole[start:]).endswith("est")


def test_a_context_that_melts_into_the_continuation_is_an_error():
    assert len(TOKENIZER.encode("he")) == 1
    with pytest.raises(ValueError, match="begin with one token"):
        read(("h", "e"))


def test_text_needs_a_tokenizer():
    reader = PromptReader(None, vocab_size=10, max_model_len=8)
    with pytest.raises(ValueError, match=r"inputs\[0\] is text"):
        read_score_inputs(("a", "b"), reader)


def test_a_finished_request_becomes_a_score():
    entries = [None, {2: Logprob(-0.5, 1)}, {3: Logprob(-1.5, 4), 9: Logprob(-0.1, 1)}]
    output = RequestOutput("r", None, [1, 2, 3], [], prompt_logprobs=entries)
    score = score_output(output, 2)
    assert score.token_logprobs == [None, -0.5, -1.5]
    assert score.ranks == [None, 1, 4]
    assert score.logprob == -1.5
    assert not score.is_greedy


def test_a_failed_request_is_an_error():
    output = RequestOutput("r", None, [1, 2], [], prompt_logprobs=[None, None], error="NaN")
    with pytest.raises(StepError, match="scoring failed: NaN"):
        score_output(output, 1)
    with pytest.raises(StepError, match="not scored"):
        score_output(RequestOutput("r", None, [1, 2], [], prompt_logprobs=[None, None]), 1)
