"""Tests of a request's own bookkeeping, and that host code stays free of JAX."""

import subprocess
import sys

from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.packed_ids import pack_ids
from jaxinfer.serving.requests.request import IN_FLIGHT_TOKEN, RequestStatus
from tests.serving.requests.host_request import host_request


def make_request(prompt, outputs=(), num_in_flight=0):
    request = host_request("r", list(prompt))
    request.output_token_ids = list(outputs)
    request.num_in_flight_tokens = num_in_flight
    request.num_tokens = len(prompt) + len(outputs) + num_in_flight
    return request


def test_new_request_waits_and_holds_nothing():
    request = host_request("r", [1, 2, 3])
    assert request.status is RequestStatus.WAITING
    assert request.num_tokens == request.num_known_tokens == 3
    assert request.blocks.table == []
    assert request.slot is None
    assert not request.is_finished


def test_tokens_spans_prompt_outputs_and_tokens_in_flight():
    request = make_request([10, 11, 12], [20, 21], num_in_flight=2)
    everything = [10, 11, 12, 20, 21, IN_FLIGHT_TOKEN, IN_FLIGHT_TOKEN]
    for start in range(8):
        for stop in range(start, 8):
            assert request.tokens(start, stop) == everything[start:stop]
            assert request.packed_tokens(start, stop) == pack_ids(everything[start:stop])


def test_a_packed_prompt_is_taken_as_it_is():
    packed = pack_ids([1, 2, 3])
    assert Prompt([1, 2, 3], packed=packed).packed is packed
    assert Prompt([1, 2, 3]).packed == packed


def test_forgetting_tokens_in_flight_leaves_what_the_host_has_read():
    request = make_request([10, 11], [20], num_in_flight=3)
    request.forget_tokens_in_flight()
    assert request.num_tokens == request.num_known_tokens == 3
    assert request.num_in_flight_tokens == 0


def test_requests_of_equal_content_are_different_requests():
    assert make_request([1]) != make_request([1])


def test_host_scheduling_imports_no_jax():
    imports = "jaxinfer.serving.scheduler.scheduler"
    code = f"import sys, {imports}; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
