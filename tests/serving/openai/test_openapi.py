"""Requests that openapi.json allows, and broken ones, are answered as it says."""

import copy

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from jaxinfer.serving.openai.app import create_app
from jaxinfer.serving.openai.settings import ServerSettings

KEY = {"Authorization": "Bearer key"}
BODIES = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
]


@pytest.fixture(scope="module")
def schema(instant_engine):
    everything = ServerSettings(
        served_model_names=("tiny",),
        api_keys=("key",),
        enable_admin=True,
        enable_tokenizer_info=True,
        profile_directory="unused",
    )
    app = create_app(instant_engine, everything)
    document = copy.deepcopy(app.openapi())
    for operations in document["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)  # every case has the key
    schema = schemathesis.openapi.from_dict(document)
    schema.app = app
    yield schema
    app.state.front.prompts.close()


def no_server_error(ctx, response, case):
    has_no_such_model = response.status_code == 501 and "this model has no" in response.text
    assert response.status_code < 500 or has_no_such_model, response.text


CHECKS = [
    no_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


def statuses(operation, mode, num_cases):
    """Of the answers to cases of one operation, each of which is as openapi.json says."""
    found = []

    @settings(max_examples=num_cases, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        response = case.call(headers=KEY)
        case.validate_response(response, checks=CHECKS)
        found.append(response.status_code)

    run()
    return found


@pytest.mark.parametrize("num_cases", [8, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("path", BODIES)
def test_every_body_is_answered_as_documented(schema, path, num_cases):
    operation = schema[path]["POST"]
    taken = statuses(operation, GenerationMode.POSITIVE, num_cases)
    statuses(operation, GenerationMode.NEGATIVE, num_cases)
    if num_cases > 100:  # and they get further than the checks of their fields
        assert taken.count(200) > num_cases // 100


@pytest.mark.parametrize("num_cases", [2, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_every_other_route_answers_as_documented(schema, num_cases, subtests):
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in BODIES:
            continue
        with subtests.test(operation.label):
            statuses(operation, GenerationMode.POSITIVE, num_cases)
            if operation.query:  # else nothing about it can be wrong
                statuses(operation, GenerationMode.NEGATIVE, num_cases)
