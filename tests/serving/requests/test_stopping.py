"""Tests of what ends a request and how long it may become."""

import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.stopping import check_stop, set_limits
from tests.serving.requests.host_request import host_request

EOS = frozenset([0, 9])


def stop_after(outputs, prompt_length=4, max_model_len=100, **params):
    request = host_request("r", [1] * prompt_length, SamplingParams(**{"max_tokens": 50} | params))
    set_limits(request, max_model_len, EOS)
    request.output_token_ids = list(outputs)
    return check_stop(request, outputs[-1], EOS)


def test_ordinary_token_ends_nothing():
    assert stop_after([5]) is None


@pytest.mark.parametrize("eos", [0, 9])
def test_each_end_of_sequence_token_stops_without_a_stop_reason(eos):
    assert stop_after([5, eos]) == ("stop", None)


def test_ignored_end_of_sequence_goes_on():
    assert stop_after([0], ignore_eos=True) is None


def test_stop_token_is_the_stop_reason():
    assert stop_after([7], stop_token_ids=[7]) == ("stop", 7)


def test_end_of_sequence_listed_as_stop_token_stops_even_if_ignored():
    assert stop_after([0], stop_token_ids=[0], ignore_eos=True) == ("stop", 0)
    assert stop_after([0], stop_token_ids=[0]) == ("stop", None)


@pytest.mark.parametrize("token", [0, 7])
def test_min_tokens_holds_back_end_of_sequence_and_stop_tokens(token):
    assert stop_after([5, token], stop_token_ids=[7], min_tokens=3) is None
    assert stop_after([5, 5, token], stop_token_ids=[7], min_tokens=3) is not None


def test_max_tokens_ends_by_length_unless_the_last_token_stops():
    assert stop_after([5, 5], max_tokens=2) == ("length", None)
    assert stop_after([5, 0], max_tokens=2) == ("stop", None)
    assert stop_after([5], max_tokens=2) is None


def test_max_model_len_ends_by_length_even_before_min_tokens():
    assert stop_after([5] * 6, prompt_length=4, max_model_len=10) == ("length", None)
    assert stop_after([0] * 6, max_model_len=10, min_tokens=20) == ("length", None)
    assert stop_after([5] * 6, max_model_len=10, max_tokens=None) == ("length", None)
    assert stop_after([5] * 5, max_model_len=10, max_tokens=None) is None


def test_prompt_without_room_for_an_output_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"prompt has 4096 tokens .*max_model_len is 4096"):
        set_limits(host_request("r", [1] * 4096), 4096, EOS)


def test_prefill_only_prompt_may_fill_the_whole_length():
    request = host_request("r", [1] * 4096, prefill_only=True)
    set_limits(request, 4096, EOS)
    assert request.limits.num_tokens == request.limits.num_cached_tokens == 4096
    longer = host_request("r", [1] * 4097, prefill_only=True)
    with pytest.raises(ValueError, match=r"4097 tokens .*4096"):
        set_limits(longer, 4096, EOS)


def test_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="prompt_token_ids must not be empty"):
        set_limits(host_request("r", []), 10, EOS)
