"""Two runs agree when their tokens are equal, or part at a near tie."""

import pytest

from jaxinfer.logprobs import Logprob
from jaxinfer.outputs import CompletionOutput
from scripts.gpu_gate.agreement import CheckError, check_greedy, check_sampled


def answer(tokens, *, others=(), logprob=-1.0):
    entries = [
        {token: Logprob(logprob), **{other: Logprob(value) for other, value in others}}
        for token in tokens
    ]
    return CompletionOutput(0, "", tokens, logprobs=entries)


def test_equal_tokens_agree():
    check_greedy(answer([1, 2, 3]), answer([1, 2, 3]))


def test_a_near_tie_may_go_either_way():
    check_greedy(answer([1, 2], others=[(9, -1.04)]), answer([1, 9]))


@pytest.mark.parametrize("others", [[(9, -1.2)], []])
def test_any_other_difference_is_a_fault(others):
    with pytest.raises(CheckError, match="tokens differ at 1: 2 and 9"):
        check_greedy(answer([1, 2], others=others), answer([1, 9]))


def test_an_answer_that_ends_early_is_a_fault():
    with pytest.raises(CheckError, match="3 and 2 tokens"):
        check_greedy(answer([1, 2, 3]), answer([1, 2]))


def test_samples_agree_as_far_as_their_tokens_do():
    assert check_sampled(answer([1, 2, 3]), answer([1, 2, 4], logprob=-1.01)) == 2


@pytest.mark.parametrize("value", [-1.2, float("nan")])
def test_log_probabilities_that_are_not_near_are_a_fault(value):
    with pytest.raises(CheckError, match="log-probabilities of token 0 are"):
        check_sampled(answer([1, 2]), answer([1, 2], logprob=value))
