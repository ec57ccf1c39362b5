"""What vLLM's own tests ask of its parsers `hermes`, `qwen3_coder` and `qwen3_xml`, and what they
would find here, whole and in pieces; `docs/from-vllm.md` says where the answers differ.
"""

import json
import random

import pytest

from jaxinfer.serving.parsers.answer import assemble
from jaxinfer.serving.parsers.registry import TOOL_PARSERS
from tests.serving.parsers.splitting import parse

PROPERTIES = {
    "weather": {
        "city": {"type": "string"},
        "state": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
    },
    "area": {
        "shape": {"type": "string"},
        "sides": {"type": "object"},
        "digits": {"type": "integer"},
    },
    "types": {
        "int": {"type": "integer"},
        "float": {"type": "float"},
        "bool": {"type": "boolean"},
        "str": {"type": "string"},
        "obj": {"type": "object"},
        "list": {"type": "array"},
    },
    "optional": {
        "int": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 5},
        "str": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "list": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "obj": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "bool": {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
        "two": {"type": ["integer", "null"]},
        "any": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
    },
    "write": {"path": {"type": "string"}, "content": {"type": "string"}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}
    for name, properties in PROPERTIES.items()
]


def block(name, *, lines=True, **values):
    around = "\n" if lines else ""
    tags = "".join(f"<parameter={k}>{around}{v}{around}</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


OSLO = {"city": "Oslo", "state": "NO", "unit": "C"}
BERGEN = {"city": "Bergen", "state": "NO", "unit": "F"}
OPEN_CITY = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n<parameter=state>\nNO\n</parameter>\n"
    "<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>"
)
NO_END = (
    "<tool_call>\n<function=weather\n<parameter=city>Oslo</parameter>\n</function>\n</tool_call>"
)
NESTED = f"doc = '''\n{block('write', path='a.txt', content='hello')}\n'''"
FOREIGN = f"doc = '''\n{block('other', lines=False, bar='baz')}\n'''"
TAGS = 'tags = ["<tool_call>\\n",\n "<parameter=q>\\n", "</parameter>\\n",\n "</function>\\n"]'
SAME_NAME = "doc = '''\n<parameter=path>\nx/y\n</parameter>\n'''"

CODER = {
    "no call": ("This is a text.", "This is a text.", []),
    "a call": (block("weather", **OSLO), "", [("weather", OSLO)]),
    "a call behind text": (f"I look.{block('weather', **OSLO)}", "I look.", [("weather", OSLO)]),
    "an object of two lines": (
        block("area", shape="box", sides='{"a": 1,\n "b": 2}', digits="2"),
        "",
        [("area", {"shape": "box", "sides": {"a": 1, "b": 2}, "digits": 2})],
    ),
    "two calls": (
        f"{block('weather', **OSLO)}\n{block('weather', **BERGEN)}",
        "",
        [("weather", OSLO), ("weather", BERGEN)],
    ),
    "two calls and text": (
        f"{block('weather', **OSLO)}\n{block('weather', **BERGEN)}\nDone!",
        "Done!",
        [("weather", OSLO), ("weather", BERGEN)],
    ),
    "text around": (
        f"Let me look.\n\n{block('weather', lines=False, city='Oslo')}\n\nThere.",
        "Let me look.There.",
        [("weather", {"city": "Oslo"})],
    ),
    "no tags around": (
        block("weather", **OSLO).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
        "",
        [("weather", OSLO)],
    ),
    "no opening tag": (
        "I look.\n\n" + block("weather", **OSLO).removeprefix("<tool_call>\n"),
        "I look.",
        [("weather", OSLO)],
    ),
    "types": (
        block("types", int="42", float="3.14", bool="true", str="hello", obj='{"k": "v"}'),
        "",
        [("types", {"int": 42, "float": 3.14, "bool": True, "str": "hello", "obj": {"k": "v"}})],
    ),
    "values that don't fit": (
        block("types", lines=False, int="no number", float="no float"),
        "",
        [("types", {"int": "no number", "float": "no float"})],
    ),
    "anyOf": (
        block("optional", int="5", str="hello", list='["a"]', obj='{"k": 1}', two="42", any="text"),
        "",
        [
            (
                "optional",
                {
                    "int": 5,
                    "str": "hello",
                    "list": ["a"],
                    "obj": {"k": 1},
                    "two": 42,
                    "any": "text",
                },
            )
        ],
    ),
    "anyOf, of one line": (
        block("optional", lines=False, int="10", str="42", bool="true", obj='{"k": "v", "n": 4}'),
        "",
        [("optional", {"int": 10, "str": "42", "bool": True, "obj": {"k": "v", "n": 4}})],
    ),
    "null": (
        block("optional", lines=False, str="null", int="null"),
        "",
        [("optional", {"str": None, "int": None})],
    ),
    "None": (
        block("optional", lines=False, str="None", int="None"),
        "",
        [("optional", {"str": None, "int": None})],
    ),
    "null as a text": (block("types", lines=False, str="null"), "", [("types", {"str": "null"})]),
    "Python's quotes": (block("types", obj="{'k': 'v'}"), "", [("types", {"obj": {"k": "v"}})]),
    "Python's in JSON's": (
        block("types", str="x", obj="\"{'k': 'v', 'n': 1}\""),
        "",
        [("types", {"str": "x", "obj": {"k": "v", "n": 1}})],
    ),
    "true in a list": (
        block("types", list='["a", 1, true, null]'),
        "",
        [("types", {"list": ["a", 1, True, None]})],
    ),
    "no schema": (
        block("unknown", lines=False, a="1", b="null", c='["x"]', d="1\n2", e='"q" C:\\f'),
        "",
        [("unknown", {"a": "1", "b": "null", "c": '["x"]', "d": "1\n2", "e": '"q" C:\\f'})],
    ),
    "no arguments": (block("refresh"), "", [("refresh", {})]),
    "a value left open": (f"Wait:\n{OPEN_CITY}", "Wait:", [("weather", OSLO)]),
    "a malformed name": (NO_END, NO_END, []),
    "a malformed name, then a call": (
        f"{NO_END}\n{block('weather', **OSLO)}",
        NO_END,
        [("weather", OSLO)],
    ),
    "a name of a template": (
        f"{block('{{ tc.name }}', **{'{{ k }}': '{{ v }}'})}\n\n{block('write', path='a')}",
        block("{{ tc.name }}", **{"{{ k }}": "{{ v }}"}),
        [("write", {"path": "a"})],
    ),
    "an empty name": ("<tool_call><function=></function></tool_call>",) * 2 + ([],),
    "a tag in the text": (
        f"So: <tool_call>an example</tool_call>. Now:\n{block('write', path='a')}",
        "So: <tool_call>an example</tool_call>. Now:",
        [("write", {"path": "a"})],
    ),
    "tags in a value": (
        block("write", path="t", content=TAGS),
        "",
        [("write", {"path": "t", "content": TAGS})],
    ),
    "the same name in a value": (
        block("write", path="t", content=SAME_NAME),
        "",
        [("write", {"path": "t", "content": SAME_NAME})],
    ),
    "a call in a value": (
        block("write", path="t", content=NESTED),
        "",
        [("write", {"path": "t", "content": NESTED})],
    ),
    "a foreign call in a value": (
        f"{block('other', lines=False, bar='baz')}\n\n{block('write', path='t', content=FOREIGN)}",
        "",
        [("other", {"bar": "baz"}), ("write", {"path": "t", "content": FOREIGN})],
    ),
}


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def text_of(value):
    return f"<tool_call>{json.dumps({'name': 'f', 'arguments': value})}</tool_call>"


HERMES = {
    "no call": ("Some text, no call.", "Some text, no call.", []),
    "a call": (call("answer", '{"done": true}'), "", [("answer", {"done": True})]),
    "lines in JSON": (
        '<tool_call>{"name": "f","arguments": {"a":"San José", "b": "C"}}</tool_call>',
        "",
        [("f", {"a": "San José", "b": "C"})],
    ),
    "no end": (call("f", '{"a": true}')[: -len("\n</tool_call>")], "", [("f", {"a": True})]),
    "text, then a call": (f"Hi!{call('f', '{}')}", "Hi!", [("f", {})]),
    "two calls": (
        call("find", '{"q": "cats"}') + call("find", '{"q": "dogs"}'),
        "",
        [("find", {"q": "cats"}), ("find", {"q": "dogs"})],
    ),
    "arguments as JSON text": (text_of('{"param": "most"}'), "", [("f", {"param": "most"})]),
    "arguments as text": (text_of("hello"), "", [("f", "hello")]),
    "almost an object": (text_of("{hello world}"), "", [("f", "{hello world}")]),
    "almost a list": (text_of("[oops"), "", [("f", "[oops")]),
    "an object and more": (text_of('{"a": 1} and more'), "", [("f", '{"a": 1} and more')]),
}

CASES = [("qwen3_coder", *case) for case in CODER.items()]
CASES += [("hermes", *case) for case in HERMES.items()]


def parts_of(text, how):
    if how == "whole":
        return [text]
    if how == "characters":
        return list(text)
    draw, parts = random.Random(how), []
    while text:
        size = draw.randint(1, 12)
        parts.append(text[:size])
        text = text[size:]
    return parts


@pytest.mark.parametrize("how", ["whole", "characters", "1", "2", "3"])
@pytest.mark.parametrize(
    ("parser", "case"),
    [each[:1] + each[2:] for each in CASES],
    ids=[f"{c[0]}: {c[1]}" for c in CASES],
)
def test_answers_are_those_that_vllm_expects(parser, case, how):
    text, content, calls = case
    answer = assemble(parse(TOOL_PARSERS[parser](TOOLS), parts_of(text, how)))
    assert answer.content == content
    assert [(each.name, json.loads(each.arguments)) for each in answer.tool_calls] == calls


DIFFERENT = {
    "hermes, cut within the call": (
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {"a": true}',
        [("f", '{"a": true}')],
    ),
    "qwen3_coder, cut within a text": (
        "qwen3_coder",
        "<tool_call>\n<function=write>\n<parameter=path>\na",
        [("write", '{"path": "a')],
    ),
    "qwen3_coder, a parameter of no schema in a value": (
        "qwen3_coder",
        block("write", content="x\n</parameter>\n<parameter=other>\ny"),
        [("write", '{"content": "x", "other": "y"}')],
    ),
}


@pytest.mark.parametrize("how", ["whole", "characters"])
@pytest.mark.parametrize(("parser", "text", "calls"), DIFFERENT.values(), ids=DIFFERENT)
def test_answers_that_differ_on_purpose(parser, text, calls, how):
    answer = assemble(parse(TOOL_PARSERS[parser](TOOLS), parts_of(text, how)))
    assert [(each.name, each.arguments) for each in answer.tool_calls] == calls
