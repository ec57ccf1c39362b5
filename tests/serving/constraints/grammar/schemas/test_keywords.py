"""Every keyword of JSON Schema is enforced, says nothing of values, or is refused."""

import json
import re

import jsonschema
import pytest

from jaxinfer import StructuredOutputsParams
from jaxinfer.serving.constraints.grammar.schemas.keywords import ANNOTATIONS, ENFORCED, REFUSED
from tests.serving.constraints.grammar.grammars import bundled_tokenizer, matcher, shared_compiler

NULL = {"type": "null"}
DEFINED = {"$defs": {"a": {"$anchor": "here", "type": "null"}}, "definitions": {"b": NULL}}

ENFORCED_CASES = {
    "type": ({"type": "null"}, "null", "1"),
    "enum": ({"enum": [1, "a"]}, '"a"', "2"),
    "const": ({"const": [1]}, "[1]", "[2]"),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, "9", "10"),
    "maximum": ({"type": "integer", "maximum": 9}, "9", "10"),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 9}, "8", "9"),
    "minimum": ({"type": "integer", "minimum": 5}, "5", "4"),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 5}, "6", "5"),
    "maxLength": ({"type": "string", "maxLength": 2}, '"ab"', '"abc"'),
    "minLength": ({"type": "string", "minLength": 2}, '"ab"', '"a"'),
    "pattern": ({"type": "string", "pattern": "^b"}, '"ba"', '"ab"'),
    "format": ({"type": "string", "format": "date"}, '"2026-01-31"', '"2026-13-01"'),
    "maxItems": ({"type": "array", "maxItems": 1}, "[1]", "[1, 2]"),
    "minItems": ({"type": "array", "minItems": 2}, "[1, 2]", "[1]"),
    "prefixItems": ({"type": "array", "prefixItems": [NULL]}, "[null, 1]", "[1]"),
    "items": ({"type": "array", "items": NULL}, "[null, null]", "[null, 1]"),
    "maxProperties": ({"type": "object", "maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 2}'),
    "minProperties": ({"type": "object", "minProperties": 1}, '{"a": 1}', "{}"),
    "required": ({"type": "object", "required": ["a"]}, '{"a": 1}', '{"b": 1}'),
    "properties": ({"type": "object", "properties": {"a": NULL}}, '{"a": null}', '{"a": 1}'),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^a": NULL}},
        '{"ab": null, "b": 1}',
        '{"ab": 1}',
    ),
    "additionalProperties": (
        {"type": "object", "additionalProperties": NULL},
        '{"a": null}',
        '{"a": 1}',
    ),
    "allOf": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "3", "2"),
    "anyOf": ({"anyOf": [NULL, {"const": 1}]}, "1", "2"),
    "oneOf": ({"oneOf": [NULL, {"const": 1}]}, "1", "2"),
    "$ref": ({"$ref": "#/$defs/a", **DEFINED}, "null", "1"),
    "$defs": ({"$ref": "#/$defs/a", **DEFINED}, "null", "1"),
    "definitions": ({"$ref": "#/definitions/b", **DEFINED}, "null", "1"),
    "$anchor": ({"$ref": "#here", **DEFINED}, "null", "1"),
    "$id": ({"$id": "http://jaxinfer/a", "$ref": "#/$defs/a", **DEFINED}, "null", "1"),
}
"""Of each keyword a schema, an answer that follows it, and one that does not."""

OLDER = {"additionalItems", "id"}  # of older drafts, which a schema may still be in

REFUSED_CASES = {
    "not": NULL,
    "if": NULL,
    "then": NULL,
    "else": NULL,
    "dependentSchemas": {"a": NULL},
    "contains": NULL,
    "propertyNames": {"pattern": "^a"},
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "uniqueItems": True,
    "maxContains": 1,
    "minContains": 1,
    "dependentRequired": {"a": ["b"]},
    "dependencies": {"a": ["b"]},
    "$dynamicAnchor": "a",
    "$dynamicRef": "#a",
    "$recursiveAnchor": True,
    "$recursiveRef": "#",
}

VOCABULARIES = {
    "core": "$schema $id $anchor $dynamicAnchor $ref $dynamicRef $defs $comment $vocabulary",
    "applicator": "allOf anyOf oneOf not if then else dependentSchemas prefixItems items contains "
    "properties patternProperties additionalProperties propertyNames",
    "unevaluated": "unevaluatedItems unevaluatedProperties",
    "validation": "type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum "
    "maxLength minLength pattern maxItems minItems uniqueItems maxContains minContains "
    "maxProperties minProperties required dependentRequired",
    "meta-data": "title description default deprecated readOnly writeOnly examples",
    "format": "format",
    "content": "contentEncoding contentMediaType contentSchema",
}
"""All keywords of draft 2020-12."""


def test_every_keyword_of_the_draft_is_in_one_table():
    for keyword in " ".join(VOCABULARIES.values()).split():
        assert (keyword in ENFORCED) + (keyword in ANNOTATIONS) + (keyword in REFUSED) == 1, keyword
    assert set(ENFORCED_CASES) == ENFORCED - OLDER
    assert set(REFUSED_CASES) == REFUSED


@pytest.mark.parametrize("keyword", ENFORCED_CASES)
def test_an_answer_follows_what_is_enforced(keyword):
    schema, good, bad = ENFORCED_CASES[keyword]
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    assert validator.is_valid(json.loads(good))
    assert not validator.is_valid(json.loads(bad))
    assert _takes(schema, good)
    assert not _takes(schema, bad)


@pytest.mark.parametrize("keyword", sorted(ANNOTATIONS))
def test_an_annotation_changes_nothing(keyword):
    value = "https://json-schema.org/draft/2020-12/schema" if keyword == "$schema" else {"a": "b"}
    schema = {"type": "integer", keyword: value, "x-origin": 1}
    assert _takes(schema, "12")
    assert not _takes(schema, "null")


PATHS = {
    "root": "",
    "properties": "properties.a: ",
    "items": "items: ",
    "anyOf": "anyOf.1: ",
    "$defs": "$defs.a: ",
    "patternProperties": "anyOf.0.patternProperties.a: ",
    "prefixItems": "anyOf.0.prefixItems.0: ",
    "additionalItems": "anyOf.0.additionalItems.0: ",
}
"""Where errors say that a keyword stands, by what is around it."""


@pytest.mark.parametrize("keyword", REFUSED_CASES)
@pytest.mark.parametrize("wrap", ["root", "properties", "items", "anyOf", "$defs"])
def test_what_can_not_be_enforced_is_refused_wherever_it_is(keyword, wrap):
    part = {keyword: REFUSED_CASES[keyword]}
    schema = {
        "root": part,
        "properties": {"type": "object", "properties": {"a": part}},
        "items": {"type": "array", "items": part},
        "anyOf": {"anyOf": [NULL, part]},
        "$defs": {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": part}},
    }[wrap]
    message = f"structured_outputs.json: {PATHS[wrap]}{keyword!r} can't be enforced; leave it out"
    with pytest.raises(ValueError, match=re.escape(message)):
        _compile(schema)


@pytest.mark.parametrize("keyword", ["maxlength", "extends", "disallow", "divisibleBy"])
@pytest.mark.parametrize("wrap", ["$defs", "patternProperties", "prefixItems", "additionalItems"])
def test_an_unknown_keyword_is_refused_wherever_it_is(keyword, wrap):
    part = {"type": "string", keyword: 1}
    inner = {"a": part} if wrap in ("$defs", "patternProperties") else [part]
    where = PATHS[wrap].replace("$defs.a", "anyOf.0.$defs.a")
    message = f"json: {where}'{keyword}' is no keyword that can be enforced"
    with pytest.raises(ValueError, match=re.escape(message)):
        _compile({"anyOf": [{wrap: inner}]})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "nullable": True}, "null", "1"),
        ({"type": "string", "enum": ["a"], "nullable": True}, "null", '"b"'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}, "nullable": True}, "null", "2"),
        ({"anyOf": [{"const": 1}], "nullable": True}, "1", '"b"'),
        ({"type": "string", "nullable": False}, '"a"', "null"),
        ({"items": {"type": "integer", "nullable": True}, "type": "array"}, "[1, null]", '["a"]'),
        ({"type": "string", "format": "password", "maxLength": 1}, '"a"', '"ab"'),
        ({"type": "string", "format": "date-time", "nullable": True}, "null", '"ab"'),
        ({"type": "integer", "format": "int64"}, "1", '"a"'),
        ({"type": "array", "uniqueItems": False, "items": NULL}, "[null, null]", "[1]"),
        ({"type": "array", "uniqueItems": True, "maxItems": 1, "items": NULL}, "[null]", "[1]"),
        (
            {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": NULL},
            '{"a": null}',
            '{"a": 1}',
        ),
        (
            {"type": "object", "patternProperties": {"^a": NULL}, "minProperties": 1},
            '{"a": null}',
            "{}",
        ),
        (
            {"type": "object", "required": ["a", "a"], "properties": {"a": NULL}},
            '{"a": null}',
            "{}",
        ),
    ],
)
def test_what_other_tools_write_is_enforced_too(schema, good, bad):
    before = json.dumps(schema)
    assert _takes(schema, good)
    assert not _takes(schema, bad)
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "object", "properties": {"b": {}}, "minProperties": 1}, "minProperties and maxP"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf is enforced"),
        ({"type": "string", "pattern": "(?=a)b"}, "regex parse error: (?=a)b ^^^ error: look-ar"),
        ({"$ref": "#/$defs/b"}, "Pointer '/$defs/b' does not exist"),
        ({"type": "float"}, "Invalid type: float"),
    ],
)
@pytest.mark.parametrize("wrap", ["properties", "items", "anyOf"])
def test_what_the_library_refuses_is_said_with_its_place(part, message, wrap):
    wrapped = {
        "properties": {"type": "object", "properties": {"a": part}},
        "items": {"type": "array", "items": part},
        "anyOf": {"anyOf": [NULL, part]},
    }
    message = f"structured_outputs.json: {PATHS[wrap]}{message}"
    with pytest.raises(ValueError, match=re.escape(message)):
        _compile({**wrapped[wrap], "$defs": {"a": NULL}})


@pytest.mark.parametrize("names", [{"patternProperties": {"^a": NULL}}, {"items": NULL}])
def test_a_number_of_names_that_may_repeat_is_refused(names):
    """A name that the schema lists comes once; of others the grammar knows no earlier ones."""
    message = "'minProperties' can't be enforced where more than one name is not required, as that"
    schema = {"type": "object", "required": ["b", "b"], "minProperties": 3, **names}
    with pytest.raises(ValueError, match=f"json: items: {message}"):
        _compile({"type": "array", "items": schema})
    two = {**schema, "minProperties": 2, "required": ["ab"]}
    assert _takes(two, '{"ab": null, "ac": null}')
    assert not _takes(two, '{"ab": null, "ab": null}')


def test_names_and_values_are_no_keywords():
    schema = {"type": "object", "properties": {"maxlength": {"enum": [{"nullable": 1}]}}}
    assert _takes(schema, '{"maxlength": {"nullable": 1}}')


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"enum": "a"}, "'enum' must be a list"),
        ({"anyOf": None}, "'anyOf' must be a list"),
        ({"required": True}, "'required' must be a list"),
        ({"minProperties": "2"}, "'minProperties' must be an integer"),
        ({"pattern": 1}, "'pattern' must be a text"),
        ({"$ref": []}, "'$ref' must be a text"),
    ],
)
def test_a_keyword_of_a_wrong_type_is_said_with_its_place(part, message):
    with pytest.raises(ValueError, match=re.escape(f"json: properties.a: {message}")):
        _compile({"type": "object", "properties": {"a": part}})


@pytest.mark.parametrize("bound", ["minimum", "exclusiveMaximum"])
def test_a_bound_beyond_64_bits_is_refused(bound):
    with pytest.raises(ValueError, match=f"{bound} must be within 64 bits"):
        _compile({"items": {"type": "integer", bound: 1e30}})


def _compile(schema):
    return shared_compiler().get(StructuredOutputsParams(json=schema))


def _takes(schema, text):
    follower = matcher(json=schema)
    try:
        follower.follow(bundled_tokenizer().encode(text, add_special_tokens=False))
    except ValueError:
        return False
    return follower.state.is_accepting()
