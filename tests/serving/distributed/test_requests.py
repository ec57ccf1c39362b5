"""A request survives the way through JSON, with everything that decides its tokens."""

import json

import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.distributed.requests import request_from_json, request_to_json
from jaxinfer.serving.inputs import Prompt


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(n=3, temperature=0.1 + 0.2, top_p=0.7, min_p=1e-9, seed=2**63 - 1),
        SamplingParams(max_tokens=None, stop=["ü", "\ud800"], bad_words=["x"], min_tokens=3),
        SamplingParams(logit_bias={5: -1.5, 7: 2.0}, allowed_token_ids=[5, 7], logprobs=2),
    ],
)
def test_a_request_survives_json(params):
    prompt = Prompt([1, 2, 3], "its text", "salt")
    message = request_to_json("a", prompt, params, prefill_only=True, priority=3)
    arguments = request_from_json(json.loads(json.dumps(message)))
    assert arguments == {
        "request_id": "a",
        "prompt": Prompt([1, 2, 3], None, "salt"),
        "params": params,
        "prefill_only": True,
        "priority": 3,
    }
