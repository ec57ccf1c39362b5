"""Each kind of structured output as a grammar in llguidance's own format."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxinfer.serving.constraints.grammar.backend import llguidance
from jaxinfer.serving.constraints.grammar.schemas.keywords import enforced_schema
from jaxinfer.structured_outputs import StructuredOutputsParams

# A schema's value under this name sets the compiler's options, which requests must not.
_SETTINGS = "x-guidance"
_GBNF_RULE = re.compile(r"[ \t]*[\w-]+[ \t]*::=")
_MAX_GBNF_CHARS = 1 << 14  # the translator's time grows with the square of the number of rules
_JSON_SETTINGS = {
    # Free white space lets a weak model write spaces for ever.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
}


def grammar_text(given: StructuredOutputsParams) -> str:
    """The grammar, not compiled or checked yet.

    Raises:
        ValueError: a part of it is malformed; one line that names the field.
    """
    if given.alternative is None:
        return _text(given)
    return _either(_text(given), given.alternative)


def _text(given: StructuredOutputsParams) -> str:
    value = given.value
    match given.kind:
        case "json":
            return _json_grammar(_schema("structured_outputs.json", json.loads(value)))
        case "json_object":
            return _json_grammar({"type": "object", _SETTINGS: _JSON_SETTINGS})
        case "regex":
            return llguidance().LLMatcher.grammar_from_regex(value)
        case "choice":
            return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
        case "grammar":
            return _lark(value)
        case "structural_tag":
            return _structural_tag(json.loads(value))


def _either(text: str, alternative: str) -> str:
    """A grammar that admits the answers of either of two grammars."""
    is_lark = not text.lstrip().startswith("{")
    first, *more = [{"lark_grammar": text}] if is_lark else json.loads(text)["grammars"]
    start = {"lark_grammar": "start: @answer | @alternative"}
    second = {"name": "alternative", "lark_grammar": alternative}
    return json.dumps({"grammars": [start, {**first, "name": "answer"}, *more, second]})


def _json_grammar(schema: dict[str, Any]) -> str:
    try:
        return llguidance().LLMatcher.grammar_from_json_schema(schema)
    except ValueError as error:
        raise ValueError(f"structured_outputs.json: {error}") from None


def _schema(name: str, schema: Any) -> dict[str, Any]:
    """A schema with this engine's settings."""
    if not isinstance(schema, Mapping):
        raise ValueError(f"{name} must be a JSON object")
    if _SETTINGS in schema:
        raise ValueError(f"{name}: {_SETTINGS!r} is no keyword of JSON schemas")
    return {**enforced_schema(name, schema), _SETTINGS: _JSON_SETTINGS}


def _lark(grammar: str) -> str:
    """The grammar in Lark's syntax, translated if it is in GBNF."""
    if not any(_GBNF_RULE.match(line) for line in grammar.splitlines()):
        return grammar
    if len(grammar) > _MAX_GBNF_CHARS:
        raise ValueError(
            f"structured_outputs.grammar has {len(grammar)} characters of GBNF, of which at most "
            f"{_MAX_GBNF_CHARS} are translated; write it in Lark's syntax"
        )
    try:
        return llguidance().gbnf_to_lark.any_to_lark(grammar)
    except Exception as error:  # the library's translator raises exceptions of any type
        raise ValueError(f"structured_outputs.grammar: not GBNF: {error}") from None


def _structural_tag(given: Mapping[str, Any]) -> str:
    """A grammar from vLLM's structures and triggers."""
    field = "structured_outputs.structural_tag"
    structures, triggers = given.get("structures"), given.get("triggers")
    if not (isinstance(triggers, list) and isinstance(structures, list) and structures) or not all(
        isinstance(trigger, str) and trigger for trigger in triggers
    ):
        raise ValueError(f'{field} needs "structures" (objects) and "triggers" (strings)')
    tags = []
    for i, each in enumerate(structures):
        name = f"{field}.structures[{i}]"
        if not isinstance(each, Mapping):
            raise ValueError(f"{name} must be an object")
        begin, end = each.get("begin"), each.get("end", "")
        if not isinstance(begin, str) or not isinstance(end, str):
            raise ValueError(f'{name} needs strings as "begin" and "end"')
        trigger = max((t for t in triggers if begin.startswith(t)), key=len, default="")
        if not trigger:
            raise ValueError(f"{name}: its begin starts with none of the triggers")
        schema = _schema(f"{name}.schema", each.get("schema"))
        tag = llguidance().StructTag
        tags.append(tag(trigger=trigger, begin=begin, grammar=schema, end=end))
    return llguidance().StructTag.to_grammar(tags, assume_special=False)
