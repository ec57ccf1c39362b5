"""Every number that openapi.json knows of, in bodies and queries, is taken or refused by name."""

import json

import pytest

EXHAUSTIVE = pytest.mark.exhaustive
KEY = {"Authorization": "Bearer key", "Content-Type": "application/json"}
REQUIRED = {
    "/v1/completions": {"prompt": [1, 2, 3], "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}
NO_NUMBERS = ["true", '"1"', "[]", "{}"]
NO_JSON = ["NaN", "Infinity"]


def leaves(schema, components):
    """(how a value is put there as JSON, its schema) of each number in a value of this schema."""
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    if schema.get("type") in ("integer", "number"):
        yield "%s", schema
    for inner in schema.get("anyOf", []):
        yield from leaves(inner, components)
    if isinstance(of_list := schema.get("items"), dict):
        yield from ((f"[{put}]", leaf) for put, leaf in leaves(of_list, components))
    if isinstance(of_dict := schema.get("additionalProperties"), dict):
        yield from ((f'{{"1": {put}}}', leaf) for put, leaf in leaves(of_dict, components))
    for name, inner in schema.get("properties", {}).items():
        yield from ((f'{{"{name}": {put}}}', leaf) for put, leaf in leaves(inner, components))


def fields_with_numbers(openapi, path):
    """(name, how a number is put there, its schema) for each of a body's numbers."""
    components = openapi["components"]["schemas"]
    content = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    body = components[content["schema"]["$ref"].rpartition("/")[2]]
    for name, schema in body["properties"].items():
        for put, leaf in leaves(schema, components):
            yield name, put, leaf


def values_in_question(schema):
    """Perhaps taken, perhaps refused."""
    above = schema.get("maximum", schema.get("exclusiveMaximum", 2**63)) + 1
    above = int(above) if schema["type"] == "integer" else above
    return ["-1", "0", json.dumps(above), str(2**63), "1e308", "null"]


def body_with(path, name, value):
    others = {key: value for key, value in REQUIRED[path].items() if key != name}
    fields = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in others.items()]
    return "{" + ", ".join([*fields, f'"{name}": {value}']) + "}"


@pytest.fixture(scope="module")
def clients(make_client, instant_engine):
    settings = {"api_keys": ("key",), "enable_admin": True}
    return {
        "instant": make_client(instant_engine, **settings),
        "engine": make_client(**settings),
    }


def test_bodies_are_all_known_here(clients):
    paths = clients["instant"].app.openapi()["paths"]
    assert {path for path in paths if "requestBody" in paths[path].get("post", {})} == set(REQUIRED)


@pytest.mark.parametrize("answers", ["instant", pytest.param("engine", marks=EXHAUSTIVE)])
@pytest.mark.parametrize("path", REQUIRED)
def test_a_number_in_a_body_is_taken_or_refused_by_name(clients, path, answers):
    client = clients[answers]
    for name, put, schema in fields_with_numbers(client.app.openapi(), path):
        for value in [*values_in_question(schema), *NO_NUMBERS, *NO_JSON]:
            body = body_with(path, name, put % value)
            answer = client.post(path, content=body, headers=KEY)
            assert answer.status_code in (200, 400), (body, answer.text)
            if answer.status_code == 400 and value not in NO_JSON:
                assert answer.json()["error"]["param"] == name, (body, answer.text)
            if value in NO_NUMBERS and (name, value) != ("prompt", '"1"'):  # which is a text
                assert answer.status_code == 400, body


def test_a_number_in_a_query_is_taken_or_refused_by_name(clients):
    client = clients["instant"]
    num_seen = 0
    for path, operations in client.app.openapi()["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", []):
                for _, schema in leaves(parameter["schema"], {}):
                    num_seen += 1
                    for value in [*values_in_question(schema), *NO_NUMBERS, *NO_JSON, "1.5", ""]:
                        query = {parameter["name"]: value}
                        answer = client.send(method, path, params=query, headers=KEY)
                        assert answer.status_code in (200, 400, 501), (path, query, answer.text)
                        assert value == "0" or answer.status_code == 400, (path, query)
    assert num_seen == 1  # the level of /sleep
