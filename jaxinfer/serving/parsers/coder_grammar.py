"""The grammar of calls in Qwen3-Coder's format: a tag for each argument, texts without quotes."""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from jaxinfer.serving.constraints.grammar.schemas.errors import NAME_COMMENT
from jaxinfer.serving.constraints.grammar.schemas.keywords import copied_parts
from jaxinfer.serving.parsers.arguments.texts import literal, referred, regex, text_terminal
from jaxinfer.serving.parsers.arguments.types import FunctionSchema

_END = r'"\n</parameter>\n"'
_NAME = r"/[^<>\s]{1,64}/"
_TAGS = r"(?s:.*)(</(parameter|function|tool_call)>|<(parameter|function)=)(?s:.*)"
_FREE = f"free[lazy]: (/(?s:.*)/ & ~{regex(_TAGS)}) {_END}"
_WORDS = {"null": ("null", "None"), "boolean": ("true", "false", "True", "False")}
_BEGINS = {"integer": "-?[0-9]", "number": "-?[0-9]", "array": r"\[", "object": r"\{"}
"""Beginnings of texts that would be read as other types, if the schema admits these too."""

_OF_ALL = ("anyOf", "oneOf", "patternProperties", "enum", "const")
_MOST_CHARS = 1 << 20

WriteJson = Callable[[Mapping[str, Any]], str]
"""A schema -> the part of a rule that admits its JSON."""


def coder_call(
    index: int, function: Mapping[str, Any], end_of_call: str, write_json: WriteJson
) -> tuple[str, list[str]]:
    """A rule for a call, after `<tool_call>`, and the rules that it needs.

    Args:
        function: as in a tool; the keywords of its schema can be enforced.
        write_json: writes the values that are not texts.

    Raises:
        ValueError: the schema can't be enforced in this format; one line that begins with its name.
    """
    name = f"parameters of {function['name']!r}"
    schema = FunctionSchema(function.get("parameters") or {})
    begin = literal(f"\n<function={function['name']}>\n")
    rules: list[str] = []
    calls: list[str] = []
    num_chars = 0
    for key, argument, declared in _arguments(name, schema):
        rule = f"argument_{index}_{len(calls)}"
        where = f"{name}: additionalProperties" if argument is None else f"{name}: {argument!r}"
        try:
            values, terminals = _value(rule, declared, schema, write_json)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        rules += [each if each == _FREE else f"{NAME_COMMENT}{where}\n{each}" for each in terminals]
        rules.append(f"{NAME_COMMENT}{where}\n{rule}: {_tag(where, argument)} ({values})")
        num_chars += sum(map(len, rules[-2:]))
        if num_chars > _MOST_CHARS:
            raise ValueError(f"{name}: more than {_MOST_CHARS} characters with their definitions")
        calls.append(rule + key)
    return f'{begin} {" ".join(calls)} "</function>\\n" {end_of_call}', rules


def _tag(name: str, argument: str | None) -> str:
    if argument is None:
        return f'"<parameter=" {_NAME} ">\\n"'
    if re.search("[<>]", argument) or argument != argument.strip() or not argument:
        raise ValueError(f"{name}: a name with such characters can't be written as a tag")
    return literal(f"<parameter={argument}>\n")


def _arguments(name: str, schema: FunctionSchema) -> Iterator[tuple[str, str | None, Any]]:
    """Each argument's repetition, name and schema; the name None stands for all others."""
    _check_whole(name, schema)
    for argument, declared in schema.properties.items():
        if declared is not False:
            yield "" if argument in schema.required else "?", argument, declared
    for argument in schema.required:
        if schema.properties.get(argument, schema.additional) is False:
            raise ValueError(f"{name}: {argument!r} is required, but not among the properties")
        if argument not in schema.properties:
            yield "", argument, schema.additional
    is_empty = any("properties" in each for each in schema.wholes) and schema.additional is True
    if not (schema.properties or schema.required or schema.additional is False or is_empty):
        yield "*", None, schema.additional


def _check_whole(name: str, schema: FunctionSchema) -> None:
    """Refuse schemas that arguments written one by one can't follow."""
    refused = [keyword for whole in schema.wholes for keyword in _OF_ALL if keyword in whole]
    for whole in schema.wholes:
        least, most = whole.get("minProperties", 0), whole.get("maxProperties", math.inf)
        refused += ["minProperties"] if least > len(schema.required) else []
        refused += ["maxProperties"] if most < len(schema.properties) else []
    if refused:
        raise ValueError(
            f"{name}: {refused[0]!r} of all arguments can't be enforced in the format that this "
            "model calls functions in; leave it out"
        )


def _value(
    rule: str, declared: Any, schema: FunctionSchema, write_json: WriteJson
) -> tuple[str, list[str]]:
    """The alternatives of an argument's value, and the terminals that they need."""
    expected = schema.type_of_schema(declared)
    kinds = expected.kinds or frozenset({"string"})
    others = kinds - {"string"}
    texts = text_terminal(declared, schema.resolve) if "string" in kinds else None
    if texts is None:
        return f"{write_json(_json_schema(declared, others, schema))} {_END}", []
    if texts == "" and not others:
        return "free", [_FREE]
    terminal = f"text_of_{rule}"
    if expected.choices is not None:
        others = frozenset[str]()
        words = [json.dumps(each) for each in expected.choices if not isinstance(each, str)]
        excluded = [_TAGS]
    else:
        words = [
            word
            for kind in _WORDS
            if kind in others
            for word in _WORDS[kind][: len(_WORDS[kind]) // 2]
        ]
        others = others - _WORDS.keys()
        if not expected.bounds_numbers:
            others -= {"integer", "number"}
        excluded = [_TAGS, *(rf"\s*{_BEGINS[kind]}(?s:.*)" for kind in others)]
        excluded += [rf"\s*({'|'.join(_WORDS[kind])})\s*" for kind in kinds & _WORDS.keys()]
    bounds = " & ".join([texts or "/(?s:.*)/", *(f"~{regex(each)}" for each in excluded)])
    alternatives = " | ".join([f"({bounds})", *map(literal, words)])
    terminals = [f"{terminal}[lazy]: ({alternatives}) {_END}"]
    if others:
        terminal += f" | {write_json(_json_schema(declared, others, schema))} {_END}"
    return terminal, terminals


def _json_schema(declared: Any, kinds: Collection[str], schema: FunctionSchema) -> dict[str, Any]:
    """A self-contained schema of an argument, which admits no texts."""
    numbers: dict[str, int] = {}
    definitions: dict[str, Any] = {}
    whole = _closed(declared, schema, numbers)
    while len(definitions) < len(numbers):
        pointer = list(numbers)[len(definitions)]
        target = referred({"$ref": pointer}, schema.resolve)
        definitions[str(len(definitions))] = _closed(target, schema, numbers)
    says_type = any(key in declared for key in ("type", "$ref", "enum", "const"))
    admits_text = "string" in (schema.type_of_schema(declared).kinds or ())
    if admits_text or not says_type:
        whole = {"allOf": [whole, {"type": sorted(kinds)}]}
    return {**whole, "$defs": definitions} if definitions else whole


def _closed(part: Any, schema: FunctionSchema, numbers: dict[str, int]) -> Any:
    """A copy whose references are numbered definitions; the numbers are added to `numbers`."""
    if not isinstance(part, Mapping):
        return part
    whole = dict(part)
    to_visit = [whole]
    while to_visit:
        each = to_visit.pop()
        each.pop("$defs", None)
        each.pop("definitions", None)
        if "$ref" in each:
            referred(each, schema.resolve)
            each["$ref"] = f"#/$defs/{numbers.setdefault(each['$ref'], len(numbers))}"
        to_visit += [copy for copy, _ in copied_parts(each, "")]
    return whole
