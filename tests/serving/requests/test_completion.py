"""One completion's tokens, text and log-probabilities, however they arrive."""

import copy
import pickle

import numpy as np
import pytest

from jaxinfer.logprobs import Logprob
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.completion import Completion
from jaxinfer.serving.requests.completion_logprobs import logprobs_at
from jaxinfer.serving.requests.result import TokenScores
from tests.linear import assert_grows_at_most
from tests.model.text.small_tokenizer import build_backend
from tests.serving.requests.host_request import host_request

TOKENIZER = Tokenizer(build_backend())


def letters(text):
    return [TOKENIZER.encode(char)[0] for char in text]


def scores(tokens):
    tokens = np.asarray([tokens], np.int32)
    return TokenScores(tokens, np.ones(tokens.shape, bool), -tokens.astype(np.float32))


def completion(**params):
    return Completion(0, host_request("a", [1], SamplingParams(**params)), TOKENIZER)


def test_a_stop_string_beats_a_stop_token_that_comes_after_it_in_the_same_step():
    made = completion(stop=["b"], stop_token_ids=letters("d"), logprobs=0)
    made.request.finish_reason, made.request.stop_reason = "stop", letters("d")[0]
    made.extend(letters("abcd"), scores(letters("abcd")), 0)
    output = made.output(delta=False)
    assert (output.text, output.stop_reason) == ("a", "b")
    assert output.token_ids == letters("ab")
    assert len(output.logprobs) == 2
    assert output.cumulative_logprob == -sum(letters("ab"))


def test_a_stop_string_beats_the_limit_it_coincides_with():
    made = completion(stop=["c"])
    made.request.finish_reason = "length"
    made.extend(letters("abc"), scores(letters("abc")), 0)
    assert (made.finish_reason, made.stop_reason) == ("stop", "c")


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_the_stop_token_is_among_the_tokens_and_in_the_text_if_asked_for(include, text):
    made = completion(stop_token_ids=letters("c"), include_stop_str_in_output=include)
    made.request.finish_reason, made.request.stop_reason = "stop", letters("c")[0]
    made.extend(letters("abc"), scores(letters("abc")), 0)
    output = made.output(delta=False)
    assert (output.text, output.token_ids) == (text, letters("abc"))


def test_deltas_hold_what_is_new():
    made = completion()
    made.extend(letters("ab"), scores(letters("ab")), 0)
    assert made.output(delta=True).text == "ab"
    assert made.output(delta=True).token_ids == []
    made.extend(letters("c"), scores(letters("c")), 0)
    assert made.output(delta=True).token_ids == letters("c")
    assert made.output(delta=False).text == "abc"


def test_a_character_that_never_completes_shows_when_the_completion_ends():
    first_byte = TOKENIZER.encode("龘")[:1]
    made = completion()
    made.extend(first_byte, scores(first_byte), 0)
    assert made.output(delta=True).text == ""
    made.finish("abort")
    assert made.output(delta=True).text == "\ufffd"


def test_without_detokenization_there_is_no_text():
    made = completion(detokenize=False)
    made.extend(letters("ab"), scores(letters("ab")), 0)
    assert made.output(delta=False).text == ""


def test_a_chosen_token_among_the_likeliest_appears_once():
    found = TokenScores(
        tokens=np.array([3]),
        ok=np.array([True]),
        logprobs=np.array([-1.0], np.float32),
        ranks=np.array([2]),
        top_ids=np.array([[5, 3, 4]]),
        top_logprobs=np.array([[-0.5, -1.0, -2.0]], np.float32),
    )
    entries = logprobs_at(found, (0,), 2, None)
    assert {token: entry.rank for token, entry in entries.items()} == {3: 2, 5: 1}
    assert len(logprobs_at(found, (0,), 3, TOKENIZER)) == 3


def test_chosen_log_probabilities_are_numbers_and_look_like_dictionaries():
    made = completion(logprobs=0)
    a, b, c = letters("abc")
    made.extend([a, b], scores([a, b, 7]), 0)
    ranked = TokenScores(
        np.array([[c]]), np.ones((1, 1), bool), np.array([[-0.5]]), np.array([[4]])
    )
    made.extend([c], ranked, 0)
    found = made.output(delta=False).logprobs
    assert found.values == [-a, -b, -0.5]
    expected = [
        {a: Logprob(-float(a), None, "a")},
        {b: Logprob(-float(b), None, "b")},
        {c: Logprob(-0.5, 4, "c")},
    ]
    assert found == expected == list(found)
    assert found[-1] == expected[-1]
    assert found[1:] == expected[1:]
    assert found != expected[1:]
    assert repr(found) == repr(expected)
    with pytest.raises(IndexError):
        found[3]


def test_chosen_log_probabilities_are_a_list_where_they_are_pickled_or_copied():
    made = completion(logprobs=0)
    made.extend(letters("ab"), scores(letters("ab")), 0)
    output = made.output(delta=False)
    for other in (pickle.loads(pickle.dumps(output)), copy.deepcopy(output)):
        assert type(other.logprobs) is list
        assert other == output


def test_deltas_hold_the_log_probabilities_that_are_new():
    made = completion(logprobs=0)
    made.extend(letters("ab"), scores(letters("ab")), 0)
    first = made.output(delta=True).logprobs
    made.extend(letters("c"), scores(letters("c")), 0)
    assert [*first, *made.output(delta=True).logprobs] == made.output(delta=False).logprobs
    assert len(first) == 2


def test_scores_that_a_step_did_not_compute_are_an_error_not_a_guess():
    tokens, ok = np.array([3]), np.array([True])
    with pytest.raises(RuntimeError, match="computed none"):
        logprobs_at(TokenScores(tokens, ok), (0,), 0, None)
    with pytest.raises(RuntimeError, match="computed none"):
        completion(logprobs=0).extend([3], TokenScores(tokens[None], ok[None]), 0)
    with pytest.raises(RuntimeError, match="reported none"):
        logprobs_at(TokenScores(tokens, ok, np.array([-1.0], np.float32)), (0,), 1, None)


@pytest.mark.parametrize("count", [0, 2])
def test_a_delta_with_logprobs_takes_as_long_after_many_tokens_as_after_few(count):
    def extending(num_tokens):
        made = Completion(0, host_request("a", [1], SamplingParams(logprobs=count)), None)
        step = scores([7])
        step.__dict__["top_ids"] = np.zeros((1, 1, 2), np.int32)
        step.__dict__["top_logprobs"] = np.zeros((1, 1, 2), np.float32)
        many = [7] * num_tokens
        made.extend([7], step, 0)
        made.token_ids += many
        made._logprobs._values = [-7.0] * (num_tokens + 1)
        made._logprobs._ranks = [None] * (num_tokens + 1)
        made._logprobs._entries = [{7: Logprob(-7.0, None)}] * (num_tokens + 1)
        made.output(delta=True)

        def extend():
            made.extend([7], step, 0)
            assert len(made.output(delta=True).logprobs) == 1

        return extend

    # A sum over all of them would take a thousand times as long.
    assert_grows_at_most(extending(10), extending(1_000_000), 30)
