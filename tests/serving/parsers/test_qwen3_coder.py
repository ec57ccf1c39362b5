"""Tool calls as tags: values by their schema's types, and models that forget tags."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.parsers.answer import parse_answer
from jaxinfer.serving.parsers.pieces import CallArguments, CallStart
from jaxinfer.serving.parsers.qwen3_coder import MAX_PARAMETERS, Qwen3CoderToolParser
from tests.serving.parsers.splitting import SCHEMAS

TYPES = {
    "text": {"type": "string"},
    "either": {"type": ["string", "null"]},
    "number": {"type": "integer"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
    "free": {},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": TYPES}}}]


def call(**values):
    written = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"


def read(text, tools=TOOLS):
    answer = parse_answer(text, tools="qwen3_coder", schemas=tools)
    return answer.content, [(c.name, json.loads(c.arguments)) for c in answer.tool_calls]


def test_values_have_the_types_of_their_schema():
    text = call(
        text='1 "\\\n\n', either="null", number="7", flag="True", list='[1, {"a": 2}]', free="7"
    )
    values = {"text": '1 "\\\n\n', "either": "null", "number": 7, "flag": True}
    assert read(text) == ("", [("f", {**values, "list": [1, {"a": 2}], "free": "7"})])


@pytest.mark.parametrize("value", ["seven", "NaN", "[" * 5000, ""])
def test_a_value_that_does_not_fit_is_a_text(value):
    assert read(call(number=value)) == ("", [("f", {"number": value})])


@pytest.mark.parametrize("value", ["1e999", "12345678901234567890.10", '["\\ud800"]', "[1,\n2]"])
def test_json_stays_as_it_is_written(value):
    (made,) = parse_answer(call(list=value), tools="qwen3_coder", schemas=TOOLS).tool_calls
    assert made.arguments == f'{{"list": {value}}}'


@pytest.mark.parametrize(
    "tools",
    [[], [{"type": "function"}], [{"function": {"name": "f", "parameters": {"properties": [1]}}}]],
)
def test_without_a_schema_values_are_texts(tools):
    assert read(call(number="7"), tools) == ("", [("f", {"number": "7"})])


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ("A.\n" + call(text="x") + "\n", "A.", [{"text": "x"}]),
        (call(text="x") + "\n" + call(number="1"), "", [{"text": "x"}, {"number": 1}]),
        ("<tool_call><function=f></function></tool_call>B", "B", [{}]),
        ("<function=f><parameter=text>x</parameter></function> B", "B", [{"text": "x"}]),
        (
            "<function=f><parameter=text>x<parameter=number>1</function>",
            "",
            [{"text": "x", "number": 1}],
        ),
        ("<tool_call>\n<function=f>\n<parameter=text>\nx\n</tool_call>", "", [{"text": "x"}]),
    ],
)
def test_calls_with_and_without_all_their_tags(text, content, arguments):
    assert read(text) == (content, [("f", each) for each in arguments])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no function</tool_call>",
        "a<function=",
        "<function=a b>x ",
        "<tool_call>",
        " <too",
    ],
)
def test_what_is_malformed_is_content(text):
    assert read(text) == (text, [])


def test_texts_come_as_they_are_made_and_numbers_whole():
    parser = Qwen3CoderToolParser(SCHEMAS)
    assert parser.feed("<tool_call>\n<function=f") == []
    assert parser.feed(">\n") == [CallStart(0, "f"), CallArguments(0, "{")]
    assert parser.feed("<parameter=text>\nab\n") == [
        CallArguments(0, '"text": "'),
        CallArguments(0, "ab"),
    ]
    assert parser.feed("c") == [CallArguments(0, "\\nc")]
    assert parser.feed("\n</parameter>\n") == [CallArguments(0, '"')]
    assert parser.feed("<parameter=number>\n1") == [CallArguments(0, ', "number": ')]
    assert parser.feed("2\n</parameter></function>") == [
        CallArguments(0, "12"),
        CallArguments(0, "}"),
    ]


def test_there_is_a_most_of_parameters():
    text = call(**{f"p{i}": "x" for i in range(MAX_PARAMETERS + 1)})
    ((_, arguments),) = read(text)[1]
    assert len(arguments) == MAX_PARAMETERS


@given(st.text(alphabet=st.characters(exclude_characters="<", exclude_categories=["Cs"])))
def test_any_text_comes_back_as_it_was(value):
    assert read(call(text=value)) == ("", [("f", {"text": value})])
