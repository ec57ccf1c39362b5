"""Requests made from openapi.json, valid and nearly valid: every answer is as documented."""

import contextlib
import copy
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from tests.server.openai.toy_engine import ToyEngine

KEY = {"Authorization": "Bearer sesame"}
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


@pytest.fixture(scope="module")
def api(make_client, engine, tmp_path_factory):
    client = make_client(
        ToyEngine(engine),
        api_keys=("sesame",),
        enable_admin=True,
        enable_tokenizer_info=True,
        profile_directory=tmp_path_factory.mktemp("profile"),
    )
    # The app outlives the calls, each of which would begin and end it.
    client.app.router.lifespan_context = lambda _: contextlib.nullcontext()
    document = copy.deepcopy(client.app.openapi())
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)  # every request has the key; test_app.py has the others
    api = schemathesis.openapi.from_dict(document)
    api.app = client.app
    return api


def modes(operation):
    """Valid and nearly valid requests; what takes no input has none that is wrong."""
    takes_input = operation.body or operation.query
    return list(GenerationMode) if takes_input else [GenerationMode.POSITIVE]


def try_requests(api, count, path=None):
    """Make requests of every operation: `count`, or one where all are alike.

    Args:
        api: of the server.
        count: requests of each operation.
        path: the only one that is tried; None tries all.

    Returns:
        How many there were of each status.
    """
    statuses = Counter()

    def check(case):
        answer = case.call(headers=KEY)
        assert answer.status_code != 500, answer.text
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code != 413:  # a large body is refused unread
            case.validate_response(answer, checks=[checks.negative_data_rejection])
        statuses[answer.status_code] += 1

    for operation in (each.ok() for each in api.get_all_operations()):
        if path not in (None, operation.path):
            continue
        kinds = modes(operation)
        run = settings(
            max_examples=count // len(kinds),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        for mode in kinds:
            run(given(case=operation.as_strategy(mode))(check))()
    return statuses


@pytest.mark.parametrize("count", [6])
def test_every_answer_is_as_documented(api, count):
    statuses = try_requests(api, count)
    assert statuses.total() > 8 * count
    assert {200, 400, 501} <= set(statuses)


BODIES = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize", "/detokenize"]
BODIES += ["/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"]
BODIES += ["/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/v1/decisions"]
BODIES += ["/classify", "/v1/classify"]
# Of few valid requests each is made once.
PARAMETERS = {"/pause": {200, 400}, "/sleep": {200, 400}, "/wake_up": {200, 400}}
PARAMETERS["/v1/models/{name}"] = {404}
PARAMETERS |= {"/v1/load_lora_adapter": {400}, "/v1/unload_lora_adapter": {400, 404}}
PARAMETERS["/rebalance_experts"] = {200, 400}


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", BODIES)
def test_two_thousand_answers_of_a_route_are_as_documented(api, path):
    statuses = try_requests(api, 2000, path)
    assert statuses.total() >= 2000
    assert {200, 400} <= set(statuses)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("path", "expected"), PARAMETERS.items())
def test_a_thousand_parameters_of_a_route_or_more_are_as_documented(api, path, expected):
    statuses = try_requests(api, 2000, path)
    assert statuses.total() >= 1000
    assert expected <= set(statuses)


def test_every_route_with_input_is_tried_exhaustively(api):
    operations = [each.ok() for each in api.get_all_operations()]
    with_input = {
        each.path for each in operations if each.body or each.query or each.path_parameters
    }
    assert with_input == {*BODIES, *PARAMETERS}
