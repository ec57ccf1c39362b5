"""Calls as tags that must follow a schema: the grammar admits what the parser reads as valid."""

import json
import re

import jsonschema
import pytest

from jaxinfer.serving.constraints.grammar.schemas.errors import grammar_error
from jaxinfer.serving.parsers.answer import parse_answer
from jaxinfer.serving.parsers.grammar import TAGS, tool_grammar
from tests.serving.constraints.grammar.grammars import bundled_tokenizer, matcher, random_answer

llguidance = pytest.importorskip("llguidance")

NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {}]}},
    "required": ["v"],
    "additionalProperties": False,
}
DEFS = {"n": NODE, "day": {"enum": ["mon", "tue"]}, "k": {"type": "string", "maxLength": 2}}
DEFS["n"]["properties"]["next"]["anyOf"][1] = {"type": "null"}


def of_a(schema, **more):
    """Parameters of one required argument."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "$defs": DEFS, **more}


def written(**values):
    tags = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text in values.items())
    return f"<tool_call>\n<function=f>\n{tags}</function>\n</tool_call>"


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def compiled(parameters):
    grammar = tool_grammar([tool(parameters)], "required", parser="qwen3_coder")["grammar"]
    tokenizer = llguidance.LLTokenizer("byte")
    start = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    if start.is_error():
        raise ValueError(f"tools: {grammar_error(grammar, start.get_error())}")
    return tokenizer, start


def arguments(parameters, text):
    (call,) = parse_answer(text, tools="qwen3_coder", schemas=[tool(parameters)]).tool_calls
    return json.loads(call.arguments)


CASES = [
    ({"type": "string"}, ["", "7", "a\nb\n", '"q" \\ é'], ["</parameter>", "<parameter=b>"]),
    ({"type": "string", "maxLength": 3}, ["", "é\n1"], ["abcd"]),
    ({"type": "string", "minLength": 2, "maxLength": 100_000}, ["ab", "x" * 400], ["a"]),
    ({"type": "string", "pattern": "^a+/$"}, ["aa/"], ["a", "ba/"]),
    ({"type": "string", "pattern": "b|^[|)x]"}, ["abc", "xc", "|"], ["c", "cx"]),
    ({"type": "string", "pattern": "\\$$"}, ["a$"], ["$a"]),
    ({"type": "string", "format": "date"}, ["2026-01-31"], ["2026-13-01"]),
    ({"type": "string", "format": "password"}, ["x"], []),
    ({"const": "x y"}, ["x y"], ["x", '"x y"']),
    ({"const": 5}, ["5"], ["6"]),
    ({"enum": ["1", 2, None]}, ["1", "2", "null"], ["3", "None"]),
    ({"type": ["string", "null"], "maxLength": 4}, ["abcd", "null"], ["abcde"]),
    ({"type": "string", "nullable": True}, ["a", "null"], []),
    ({"type": ["string", "integer"]}, ["2026-01-01", "7", "x"], []),
    (
        {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string", "maxLength": 3}]},
        ["7", "abc"],
        ["3", "abcd"],
    ),
    (
        {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]},
        ["[1, 2]", "abc"],
        ['["x"]'],
    ),
    ({"$ref": "#/$defs/day"}, ["mon"], ["wed"]),
    ({"allOf": [{"$ref": "#/$defs/k"}, {"pattern": "^a"}]}, ["ab"], ["abc", "b"]),
    (
        {"$ref": "#/$defs/n"},
        ['{"v": 1, "next": {"v": 2, "next": null}}'],
        ['{"v": "1", "next": null}'],
    ),
    ({"type": "array", "items": {"$ref": "#/$defs/day"}}, ['["mon"]'], ['["wed"]']),
    ({"$ref": "#/properties/a/anyOf/0", "anyOf": [{"type": "integer"}]}, ["5"], ["x"]),
    ({"properties": {"x": {"type": "integer"}}}, ['{"x": 1}'], ['{"x": "1"}', '"x"']),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["x", "5"], []),
    ({"type": "boolean"}, ["true"], ["yes", "True"]),
    ({"type": "float"}, ["1.5"], ["x"]),
    ({"type": "STRING", "enum": ["a"]}, ["a"], ["b"]),
    (True, ["5"], []),
    ({}, ["5"], []),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES)
def test_values_follow_their_schema_and_are_read_as_it_has_them(schema, good, bad):
    parameters = of_a(schema)
    tokenizer, start = compiled(parameters)
    for text, is_good in [(each, True) for each in good] + [(each, False) for each in bad]:
        answer = written(a=text)
        tokens = tokenizer.tokenize_str(answer)
        state = start.deep_copy()
        taken = state.try_consume_tokens(tokens)
        assert (taken == len(tokens) and state.is_accepting()) == is_good, text
        if is_good and "float" not in str(schema) and "STRING" not in str(schema):
            value = arguments(parameters, answer)
            nullable = (
                {"anyOf": [schema, {"type": "null"}]} if "nullable" in str(schema) else schema
            )
            jsonschema.validate(value, of_a(nullable))


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ({"required": ["b"]}, [{"b": "x"}], [{}]),
        ({"additionalProperties": {"type": "integer"}}, [{}, {"b": "1", "c": "2"}], [{"b": "x"}]),
        ({"additionalProperties": False}, [{}], [{"b": "x"}]),
        ({"$ref": "#/$defs/n", "$defs": DEFS}, [{"v": "1"}], [{}, {"v": "x"}]),
        (
            {"allOf": [of_a({"type": "integer"}), {"properties": {"b": {"const": 1}}}]},
            [{"a": "1"}, {"a": "2", "b": "1"}],
            [{"b": "1"}, {"a": "1", "b": "2"}],
        ),
        ({"properties": {"a": {}, "b": False}}, [{}, {"a": "x"}], [{"b": "x"}]),
        (of_a({}, minProperties=1, maxProperties=2), [{"a": "x"}], [{}]),
    ],
)
def test_arguments_together_follow_their_schema(parameters, good, bad):
    tokenizer, start = compiled(parameters)
    for values, is_good in [(each, True) for each in good] + [(each, False) for each in bad]:
        tokens = tokenizer.tokenize_str(written(**values))
        state = start.deep_copy()
        taken = state.try_consume_tokens(tokens)
        assert (taken == len(tokens) and state.is_accepting()) == is_good, values


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (of_a({"pattern": "(?=a)b"}), "'a': invalid regex \"(?=a)b\""),
        (of_a({"$ref": "#/$defs/x"}), "'a': $ref '#/$defs/x' names no part of the schema"),
        (of_a({"$ref": "#/$defs/x", "$defs": {"x": {}}}), "'a': $ref '#/$defs/x' names no part"),
        (of_a({"type": "array", "uniqueItems": True}), "properties.a: 'uniqueItems' can't be enf"),
        (
            of_a({"type": "object", "properties": {"b": {}}, "minProperties": 1}),
            "'a': minProperties and maxProperties are enforced only where",
        ),
        (
            of_a({"oneOf": [{"maxLength": 3}, {"type": "string"}]}),
            "'a': oneOf of several texts can't be enforced; write anyOf",
        ),
        ({"anyOf": [of_a({}), {}]}, "'anyOf' of all arguments can't be enforced in the format"),
        ({"properties": {"a": {}}, "minProperties": 1}, "'minProperties' of all arguments can't"),
        ({"required": ["b"], "additionalProperties": False}, "'b' is required, but not among"),
        ({"properties": {"a<b": {}}}, "'a<b': a name with such characters can't be written"),
    ],
)
def test_what_can_not_be_enforced_is_one_sentence(parameters, message):
    with pytest.raises(ValueError, match=re.escape(f"tools: parameters of 'f': {message}")):
        compiled(parameters)


def test_a_name_is_no_part_of_the_grammar():
    tokenizer, start = compiled({"properties": {'a"\n\nstart: "b': {"type": "integer"}}})
    text = written(**{'a"\n\nstart: "b': "1"})
    assert start.try_consume_tokens(tokens := tokenizer.tokenize_str(text)) == len(tokens)


def test_definitions_that_are_repeated_too_often_are_refused():
    long = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}}
    properties = {f"a{i}": {"$ref": "#/$defs/long"} for i in range(500)}
    with pytest.raises(ValueError, match="more than 1048576 characters with their definitions"):
        compiled({"type": "object", "properties": properties, "$defs": {"long": long}})


def test_definitions_that_fan_out_are_refused():
    steps = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    parameters = of_a({"$ref": "#/$defs/d0"})
    parameters["$defs"] = {**steps, "d30": {"type": "string"}}
    with pytest.raises(ValueError, match="'a': the schema has too many parts, or refers to itself"):
        compiled(parameters)


RANDOM = of_a({"type": "string", "maxLength": 6})
RANDOM["properties"] |= {
    "b": {"type": ["string", "null"], "maxLength": 5},
    "c": {"anyOf": [{"type": "integer", "minimum": 5, "maximum": 50}, {"maxLength": 3}]},
    "d": {"enum": ["x", 1, None]},
    "e": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_drawn_at_random_is_valid(seed):
    grammar = tool_grammar([tool(RANDOM)], "f", parser="qwen3_coder", tokens=list(TAGS))
    tokens = random_answer(matcher(**grammar), seed)
    text = bundled_tokenizer().decode(tokens, skip_special_tokens=False)
    jsonschema.validate(arguments(RANDOM, text), RANDOM)
