"""`StructuredOutputsParams`: one kind, checked at construction, plain to send."""

import pytest

from jaxinfer import SamplingParams, StructuredOutputsParams
from jaxinfer.structured_outputs import MAX_GRAMMAR_BYTES

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    "given",
    [
        {"json": SCHEMA},
        {"json_object": True},
        {"regex": "a+"},
        {"regex": "a+", "after_thinking": True},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "a"'},
        {"structural_tag": {"structures": [], "triggers": []}},
    ],
)
def test_each_kind_survives_being_sent_and_can_be_hashed(given):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**given))
    sent = params.structured_outputs.to_json()
    assert [*sent] == [*given]
    again = SamplingParams(structured_outputs=sent)
    assert again == params
    assert hash(again) == hash(params)


def test_a_schema_and_its_text_are_the_same():
    text = '{"type": "object",  "properties": {"a": {"type": "integer"}}}'
    assert StructuredOutputsParams(json=SCHEMA) == StructuredOutputsParams(json=text)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "got none"),
        ({"json_object": False}, ValueError, "got none"),
        ({"regex": "a", "choice": ["b"]}, ValueError, "got regex and choice"),
        ({"json": 3}, TypeError, "json must be a dictionary or its text"),
        ({"json": "[1]"}, ValueError, "json must be a JSON object"),
        ({"json": "{"}, ValueError, "json is not JSON"),
        ({"json": {"a": {1}}}, ValueError, "json is not JSON"),
        ({"json": {"a": float("nan")}}, ValueError, "json is not JSON"),
        ({"json": '{"a":' * 100_00 + "1" + "}" * 100_00}, ValueError, "nested too deeply"),
        ({"json": {"enum": [f"v{i}" for i in range(100_000)]}}, ValueError, "a grammar may have"),
        ({"after_thinking": True}, ValueError, "got none"),
        ({"regex": "a", "after_thinking": 1}, TypeError, "after_thinking must be True or False"),
        ({"json_object": 1}, TypeError, "json_object must be True or False"),
        ({"regex": ""}, ValueError, "regex must not be empty"),
        ({"regex": "\ud800"}, ValueError, "not valid Unicode"),
        ({"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, ValueError, "a grammar may have"),
        ({"grammar": 1}, TypeError, "grammar must be a string"),
        ({"choice": []}, ValueError, "choice must not be empty"),
        ({"choice": "yes"}, TypeError, "choice must be a list of strings"),
        ({"choice": [""]}, ValueError, "choice strings must have 1 to"),
    ],
)
def test_what_is_no_grammar_is_refused_by_name(given, error, message):
    with pytest.raises(error, match=f"structured_outputs.*{message}"):
        StructuredOutputsParams(**given)


def test_sampling_params_name_what_is_wrong():
    with pytest.raises(TypeError, match=r"structured_outputs has no field 'jsonn'"):
        SamplingParams(structured_outputs={"jsonn": {}})
    with pytest.raises(TypeError, match="must be a StructuredOutputsParams, got 3"):
        SamplingParams(structured_outputs=3)
    with pytest.raises(ValueError, match="min_tokens and structured_outputs exclude"):
        SamplingParams(structured_outputs={"regex": "a"}, min_tokens=1)
    assert SamplingParams(structured_outputs={"regex": "a"}).sampling_mode() == "full"
