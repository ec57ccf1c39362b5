"""A request survives the way through JSON, with everything that decides its tokens."""

import dataclasses
import json

from hypothesis import assume, given
from hypothesis import strategies as st

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.processes.requests import request_from_json, request_to_json
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.packed_ids import pack_ids

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4)
WORDS = st.lists(st.text(min_size=1, max_size=4), max_size=2)  # lone surrogates too
PENALTIES = st.floats(-2, 2)

# Of every field; a new one of `SamplingParams` needs a line here and nowhere else.
PARAMS = {
    "n": st.integers(1, 1024),
    "temperature": st.floats(0, 100),
    "top_k": st.integers(-1, 2**31 - 1),
    "top_p": st.floats(0, 1, exclude_min=True),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.01, 100),
    "presence_penalty": PENALTIES,
    "frequency_penalty": PENALTIES,
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": WORDS,
    "stop_token_ids": IDS,
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "min_tokens": st.integers(0, 3),
    "max_tokens": st.none() | st.integers(3, 2**31 - 1),
    "logprobs": st.integers(-1, 20),
    "prompt_logprobs": st.integers(-1, 20),
    "prompt_logprob_start": st.integers(0, 9),
    "logprob_token_ids": IDS,
    "forced_token_ids": IDS.map(lambda ids: ids[:2]),
    "entropy": st.booleans(),
    "support": st.integers(0, 20),
    "truncate_prompt_tokens": st.integers(1, 9),
    "logit_bias": st.dictionaries(st.integers(0, 9), st.floats(-100, 100), max_size=3),
    "allowed_token_ids": IDS,
    "bad_words": WORDS,
    "thinking_token_budget": st.none() | st.integers(0, 9),
    "timeout": st.none() | st.floats(0.1, 1e6),
    "structured_outputs": st.sampled_from(
        [{"json": {"type": "integer"}}, {"choice": ["a", "b"]}, {"json_object": True}]
    ),
    "skip_special_tokens": st.booleans(),
    "detokenize": st.booleans(),
    "output_kind": st.integers(0, 2),
}


@st.composite
def sampling_params(draw):
    given = draw(st.fixed_dictionaries({}, optional=PARAMS))
    assume(not given.get("stop") or given.get("detokenize", True))
    assume(not (given.get("min_tokens") and "structured_outputs" in given))
    assume("prompt_logprobs" in given or not given.get("prompt_logprob_start"))
    if given.get("forced_token_ids"):
        for name in ("structured_outputs", "bad_words", "thinking_token_budget", "support"):
            given.pop(name, None)
        given["max_tokens"] = max(given.get("max_tokens") or 3, 3)
    return SamplingParams(**given)


def names(record):
    return {field.name for field in dataclasses.fields(record)}


# Fields that are not named here, new ones too, get values of their annotated types.
PROMPTS = st.builds(
    Prompt,
    **dict.fromkeys(names(Prompt), ...)
    | {"token_ids": IDS, "packed": st.just(b"packed"), "adapter": st.none()},  # nor adapters
)
ANSWERS = st.builds(
    AnswerFormat,
    reasoning=st.none() | st.just("qwen3"),
    tools=st.none() | st.just("hermes"),
    schemas=st.just([{"type": "function", "function": {"name": "f"}}]),
    parallel=st.booleans(),
    stage=st.sampled_from(["possible", "open", "over"]),
    tags_are_tokens=st.booleans(),
)
RECORDS = {"prompt": PROMPTS, "params": sampling_params(), "answer": st.none() | ANSWERS}
NOT_HERE = {"capture": st.none()}  # an engine of several processes has none
REQUESTS = st.builds(
    NewRequest,
    **dict.fromkeys(names(NewRequest), ...) | RECORDS | {"sink": st.just(print)} | NOT_HERE,
)


@given(REQUESTS)
def test_a_request_survives_json_but_for_its_sink_and_its_text(request):
    received = request_from_json(json.loads(json.dumps(request_to_json(request))))
    prompt = dataclasses.replace(request.prompt, text=None)
    assert received == dataclasses.replace(request, prompt=prompt, sink=None)


def test_every_field_of_the_parameters_is_tried():
    assert PARAMS.keys() == names(SamplingParams)


def test_what_is_as_usual_does_not_travel():
    packed = pack_ids([1, 2])
    request = NewRequest(prompt=Prompt([1, 2], "text", packed=packed), params=SamplingParams(n=2))
    assert request_to_json(request) == {
        "prompt": {"token_ids": [1, 2]},
        "params": {"n": 2},
        "key": request.key,
        "label": request.key,
    }
