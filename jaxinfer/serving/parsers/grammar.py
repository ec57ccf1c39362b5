"""The grammar of an answer that must call tools, in llguidance's Lark dialect.

It is text alone; nothing here compiles it. Calls have the form that the model was trained on, so
that the parser of that form reads what the grammar admits.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jaxinfer.serving.constraints.grammar.schemas.errors import NAME_COMMENT
from jaxinfer.serving.constraints.grammar.schemas.keywords import enforced_schema
from jaxinfer.serving.parsers.arguments.types import TYPE_NAMES
from jaxinfer.serving.parsers.coder_grammar import coder_call
from jaxinfer.serving.parsers.reasoning import ReasoningState

# As json.dumps writes; free white space would let a weak model write nothing else.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_THINK, _END_OF_THINKING = "<think>", "</think>"
_CALL, _END_OF_CALL = "<tool_call>", "</tool_call>"
TAGS = (_THINK, _END_OF_THINKING, _CALL, _END_OF_CALL)
"""Tags that a model may have as tokens of their own."""

_Tag = Callable[[str], str]
"""A tag as the grammar writes it: by its name if it is a token, or else as text."""


def tool_grammar(
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    parser: str,
    reasoning: ReasoningState = "over",
    parallel: bool = True,
    strict: Sequence[str] = (),
    tokens: Collection[str] = (),
    alone: bool = False,
) -> dict[str, str]:
    """A grammar, as the field `grammar` of structured outputs.

    Args:
        tools: as in a chat request; at least one.
        choice: "auto" for text in which calls may be, "required" for at least one call, or
            the name of the function that must be called.
        parser: name of the tool parser, which decides the form.
        reasoning: the state of the answer's reasoning: the part still to come.
        parallel: several calls may follow each other; never where a function is named.
        strict: names of the functions whose arguments follow their schema where `choice` is "auto";
            otherwise all do.
        tokens: the `TAGS` that are tokens of their own; llguidance takes them for special
            ones, which no text matches.
        alone: the answer consists of calls only; with "auto", for a grammar that is an alternative
            of another.

    Raises:
        ValueError: `choice` names none of the tools, or a schema that arguments must follow has a
            keyword that can't be enforced.
    """
    functions = [dict(tool["function"]) for tool in tools]
    is_named = choice not in ("auto", "required")
    if is_named:
        functions = [each for each in functions if each["name"] == choice]
    if not functions:
        raise ValueError(f"tool_choice names {choice!r}, which is none of the tools")
    if choice == "auto":
        functions = [f if f["name"] in strict else {**f, "parameters": None} for f in functions]

    def tag(text: str) -> str:
        return text if text in tokens else json.dumps(text)

    try:
        functions = [{**f, "parameters": _enforced(f)} for f in functions]
        if parser == "qwen3_coder":
            bodies = [coder_call(i, f, tag(_END_OF_CALL), _json) for i, f in enumerate(functions)]
        else:
            bodies = [(_hermes_call(function, tag), []) for function in functions]
    except ValueError as error:
        raise ValueError(f"tools: {error}") from None
    rules = list(dict.fromkeys(rule for _, more in bodies for rule in more))
    body = " | ".join(f"body_{i}" for i in range(len(bodies)))
    for i, (text, _) in enumerate(bodies):
        rules.append(f"{NAME_COMMENT}{_name(functions[i])}\nbody_{i}: {text}")
    rules.append(f"body: {body}")
    rules.append(r"TEXT: /(.|\n)*/")
    start = ""
    if reasoning != "over":
        rules.append(_up_to("reasoning", _END_OF_THINKING, tokens))
        rules.append(r"BREAKS: /\n{0,2}/")
        start = "reasoning " if reasoning == "open" else f"({tag(_THINK)} reasoning)? "
    if choice == "auto" and not alone:
        rules += [_up_to("call", _CALL, tokens), "tail: TEXT"]
        start += "(call body)* tail" if parallel else "(call body | tail)"
    else:
        rules.append(f"call: {tag(_CALL)} body")
        breaks = "BREAKS " if start else ""
        start += f"{breaks}call" + (' ("\\n" call)*' if parallel and not is_named else "")
    return {"grammar": "\n".join(["%llguidance {}", f"start: {start}", *rules, ""])}


def _up_to(name: str, end: str, tokens: Collection[str]) -> str:
    """A rule of any text up to a tag, and the tag."""
    if end in tokens:
        return f"{name}: TEXT {end}"
    # One lexeme, so that the first tag is always the end.
    return f"{name}[lazy]: TEXT {json.dumps(end)}"


def _hermes_call(function: Mapping[str, Any], tag: _Tag) -> str:
    """A rule for a call in Hermes's format, after `<tool_call>`."""
    name = json.dumps(function["name"], ensure_ascii=False)
    begin = json.dumps(f'\n{{"name": {name}, "arguments": ', ensure_ascii=False)
    schema = {"type": "object", **function["parameters"]}
    return f'{begin} {_json(schema)} "}}\\n" {tag(_END_OF_CALL)}'


def _name(function: Mapping[str, Any]) -> str:
    """The name of a function's schema in errors."""
    return f"parameters of {function['name']!r}"


def _enforced(function: Mapping[str, Any]) -> dict[str, Any]:
    return enforced_schema(_name(function), function.get("parameters") or {}, TYPE_NAMES)


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _SPACING}, ensure_ascii=False)
