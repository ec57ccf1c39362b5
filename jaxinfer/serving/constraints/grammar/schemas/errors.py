"""Explains in one sentence which part of a schema the library can't enforce."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxinfer.serving.constraints.grammar.backend import llguidance
from jaxinfer.serving.constraints.grammar.schemas.keywords import copied_parts

NAME_COMMENT = "// "
"""Begins the line above a rule of a grammar, which names the rule's schema for errors."""

_IN_A_RULE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")
_SOURCE = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_WORDS = {
    "min/maxProperties only supported": "minProperties and maxProperties are enforced only where "
    "all of its properties are required",
    "oneOf constraints are not supported": "oneOf is enforced only where its cases differ in type "
    "or in a constant property; write anyOf",
    "NoExtensionBias": "no text matches it, because it refers only to itself",
}
_REFERENCES = ("$id", "$defs", "definitions")
_MOST_PARTS = 200
_MOST_PATH_CHARS = 60


def grammar_error(text: str, message: str) -> str:
    """A readable error message for a grammar."""
    name, schema = "", None
    if text.startswith("{"):
        schema = json.loads(text)["grammars"][0].get("json_schema")
    elif found := _IN_A_RULE.match(message):
        name, schema = _rule(text, int(found[1]) - 1)
    if not name and schema is None:
        return _in_words(message)
    path, message = "", _SOURCE.sub("", _IN_A_RULE.sub("", message, count=1))
    if schema is not None:
        path, message = _where(schema, message)
    if len(path) > _MOST_PATH_CHARS:
        path = "..." + path[-_MOST_PATH_CHARS:]
    return ": ".join(filter(None, [name, path, _in_words(message)]))


def _in_words(message: str) -> str:
    """A sentence in place of the library's words, where they say too little."""
    return next((words for begin, words in _WORDS.items() if message.startswith(begin)), message)


def _rule(text: str, number: int) -> tuple[str, dict[str, Any] | None]:
    """The name of the rule in a line, and the schema in it that is invalid by itself."""
    lines = text.splitlines()
    above = lines[number - 1] if number else ""
    name = above.removeprefix(NAME_COMMENT) if above.startswith(NAME_COMMENT) else ""
    for found in re.finditer(r"%json (?=\{)", lines[number]):
        try:
            schema, _ = json.JSONDecoder().raw_decode(lines[number], found.end())
        except ValueError:  # within a text
            continue
        if _error(schema):
            return name, schema
    return name, None


def _where(schema: dict[str, Any], message: str) -> tuple[str, str]:
    """The path of the innermost schema that is invalid by itself, and its error."""
    references = {key: schema[key] for key in _REFERENCES if key in schema}
    part, path, num_left = dict(schema), "", _MOST_PARTS
    while True:
        for inner, inner_path in [*copied_parts(part, path)][:num_left]:
            num_left -= 1
            if found := _error({**references, **inner}):
                part, path, message = inner, inner_path, found
                break
        else:
            return path, message


def _error(schema: Mapping[str, Any]) -> str:
    matcher = llguidance().LLMatcher
    return matcher.validate_grammar(matcher.grammar_from_json_schema(json.dumps(schema)))
