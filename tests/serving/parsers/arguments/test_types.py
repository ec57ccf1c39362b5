"""Which types an argument may have, by every keyword that says so."""

import pytest

from jaxinfer.serving.parsers.arguments.types import ArgumentTypes, FunctionSchema

DEFS = {"i": {"type": "integer"}, "self": {"$ref": "#/$defs/self"}, "a/b": {"type": "array"}}
NUMBER = {"integer", "number"}


def kinds(schema):
    found = FunctionSchema({"properties": {"a": schema}, "$defs": DEFS}).type_of("a").kinds
    return None if found is None else set(found)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, None),
        (True, None),
        ({"description": "a"}, None),
        ({"type": "something"}, None),
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "float"}, NUMBER),
        ({"type": "INTEGER"}, {"integer"}),
        ({"type": "dict"}, {"object"}),
        ({"enum": ["a", None]}, {"string", "null"}),
        ({"enum": [1, 2.5]}, NUMBER),
        ({"const": True}, {"boolean"}),
        ({"type": "string", "enum": ["a", 1]}, {"string"}),
        ({"$ref": "#/$defs/i"}, {"integer"}),
        ({"$ref": "#/$defs/a~1b"}, {"array"}),
        ({"$ref": "#/properties/a/anyOf/0", "anyOf": [{"type": "null"}]}, {"null"}),
        ({"$ref": "#/$defs/none"}, None),
        ({"$ref": "#/$defs/self"}, None),
        ({"$ref": "http://localhost/a"}, None),
        ({"anyOf": [{"$ref": "#/$defs/i"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"const": "a"}, {"type": "array"}]}, {"string", "array"}),
        ({"anyOf": [{"type": "integer"}, {}]}, None),
        ({"allOf": [{"description": "a"}, {"$ref": "#/$defs/i"}]}, {"integer"}),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "string"}]}, {"string"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"minimum": 1}, NUMBER),
    ],
)
def test_types_are_those_of_the_whole_schema(schema, expected):
    assert kinds(schema) == expected


def test_choices_are_of_the_types():
    schema = FunctionSchema({"properties": {"a": {"type": "string", "enum": ["x", 1]}}})
    assert schema.type_of("a").choices == ("x",)


def test_a_schema_that_is_nested_without_end_is_looked_through_to_a_depth():
    schema = {"type": "integer"}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    assert kinds(schema) is None


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/whole", "$defs": {"whole": {"properties": {"a": {"type": "null"}}}}},
        {"allOf": [{"properties": {"a": {"type": "null"}}}]},
        {"anyOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {}}}]},
        {"additionalProperties": {"type": "null"}},
    ],
)
def test_an_argument_is_found_wherever_it_is_declared(parameters):
    assert FunctionSchema(parameters).type_of("a").kinds == {"null"}


@pytest.mark.parametrize(
    "tool", [{}, {"function": 1}, {"function": {"name": "f", "parameters": []}}]
)
def test_what_is_no_schema_says_nothing(tool):
    assert ArgumentTypes([tool]).of("f").type_of("a").is_text
