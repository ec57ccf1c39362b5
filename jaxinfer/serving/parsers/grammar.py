"""The grammar of an answer that must call tools, in llguidance's Lark dialect.

It is text alone; nothing here compiles it. Calls have the form that the model was trained on, so
that the parser of that form reads what the grammar admits.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxinfer.serving.parsers.argument_types import ArgumentTypes
from jaxinfer.serving.parsers.reasoning import ReasoningState

# As json.dumps writes; free white space would let a weak model write nothing else.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_REASONING: Mapping[ReasoningState, str] = {
    "open": "reasoning ",
    "possible": '("<think>" reasoning)? ',
    "over": "",
}


def tool_grammar(
    tools: Sequence[Mapping[str, Any]],
    choice: str,
    *,
    parser: str,
    reasoning: ReasoningState = "over",
    parallel: bool = True,
    strict: Sequence[str] = (),
) -> dict[str, str]:
    """A grammar, as the field `grammar` of structured outputs.

    Args:
        tools: as in a chat request; at least one.
        choice: "auto" for text in which calls may be, "required" for at least one call, or
            the name of the function that must be called.
        parser: name of the tool parser, which decides the form.
        reasoning: what of the answer's reasoning is still to come.
        parallel: several calls may follow each other; never where a function is named.
        strict: names of the functions whose arguments follow their schema where `choice` is "auto";
            otherwise all do.

    Raises:
        ValueError: `choice` names none of the tools.
    """
    functions = [dict(tool["function"]) for tool in tools]
    is_named = choice not in ("auto", "required")
    if is_named:
        functions = [each for each in functions if each["name"] == choice]
    if not functions:
        raise ValueError(f"tool_choice names {choice!r}, which is none of the tools")
    if choice == "auto":
        functions = [f if f["name"] in strict else {**f, "parameters": None} for f in functions]
    writer = _coder_call if parser == "qwen3_coder" else _hermes_call
    bodies = [writer(i, function) for i, function in enumerate(functions)]
    rules = list(dict.fromkeys(rule for _, more in bodies for rule in more))
    body = " | ".join(f"body_{i}" for i in range(len(bodies)))
    rules += [f"body_{i}: {text}" for i, (text, _) in enumerate(bodies)]
    rules.append(f"body: {body}")
    if reasoning != "over":
        rules.append(r"reasoning[lazy]: /(.|\n)*<\/think>/")
        rules.append(r"BREAKS: /\n{0,2}/")
    start = _REASONING[reasoning]
    if choice == "auto":
        # Text up to the tag is one lexeme with it, so that a tag in a text is always a call.
        rules += [
            'call[lazy]: TEXT "<tool_call>"',
            r"TEXT: /(.|\n)*/",
            "tail: TEXT",
        ]
        start += "(call body)* tail" if parallel else "(call body | tail)"
    else:
        rules.append('call: "<tool_call>" body')
        breaks = "BREAKS " if start else ""
        start += f"{breaks}call" + (' ("\\n" call)*' if parallel and not is_named else "")
    return {"grammar": "\n".join(["%llguidance {}", f"start: {start}", *rules, ""])}


def _hermes_call(_: int, function: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A rule's text after `<tool_call>`, and the rules that it needs."""
    name = json.dumps(function["name"], ensure_ascii=False)
    begin = json.dumps(f'\n{{"name": {name}, "arguments": ', ensure_ascii=False)
    schema = {"type": "object", **(function.get("parameters") or {})}
    return f'{begin} {_json(schema)} "}}\\n</tool_call>"', []


def _coder_call(index: int, function: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The same with a tag for each argument, in the schema's order."""
    schema = function.get("parameters") or {}
    begin = json.dumps(f"\n<function={function['name']}>\n", ensure_ascii=False)
    end = '"</function>\\n</tool_call>"'
    if not schema.get("properties"):
        anything = "" if "properties" in schema else f"any_{index}* "
        rule = f'any_{index}: "<parameter=" /[^<>\\n]{{1,64}}/ ">\\n" text'
        return f"{begin} {anything}{end}", [rule, _TEXT_VALUE] if anything else []
    rules = list(_parameters(index, function, schema))
    return f"{begin} {' '.join(name for name, _ in rules)} {end}", [
        *(rule for _, rule in rules),
        _TEXT_VALUE,
    ]


_TEXT_VALUE = r"text[lazy]: /(.|\n)*\n<\/parameter>\n/"


def _parameters(
    index: int, function: Mapping[str, Any], schema: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """For each argument, how it is named in the call's rule, and its own rule."""
    types = ArgumentTypes([{"function": function}])
    required = schema.get("required", ())
    for i, (name, declared) in enumerate(schema["properties"].items()):
        begin = json.dumps(f"<parameter={name}>\n", ensure_ascii=False)
        choices = declared.get("enum") if isinstance(declared, Mapping) else None
        if not types.is_text(function["name"], name):
            value = f'{_json(declared)} "\\n</parameter>\\n"'
        elif choices:
            texts = " | ".join(json.dumps(str(each), ensure_ascii=False) for each in choices)
            value = f'({texts}) "\\n</parameter>\\n"'
        else:
            value = "text"
        rule = f"argument_{index}_{i}"
        yield rule + ("" if name in required else "?"), f"{rule}: {begin} {value}"


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _SPACING}, ensure_ascii=False)
