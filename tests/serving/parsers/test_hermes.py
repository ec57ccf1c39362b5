"""Tool calls in JSON: names, arguments as they come, several of them, and what is no call."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.parsers.answer import ToolCall, parse_answer
from jaxinfer.serving.parsers.hermes import HermesToolParser
from jaxinfer.serving.parsers.pieces import MAX_BLOCKS, CallArguments, CallStart, Content
from tests.serving.parsers.splitting import parse

ONE = '<tool_call>\n{"name": "f", "arguments": {"city": "東京"}}\n</tool_call>'


def read(text):
    answer = parse_answer(text, tools="hermes")
    return answer.content, answer.tool_calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (ONE, "", [ToolCall("f", '{"city": "東京"}')]),
        (f"Wait.\n{ONE}\n", "Wait.", [ToolCall("f", '{"city": "東京"}')]),
        (f"{ONE}\n{ONE}", "", [ToolCall("f", '{"city": "東京"}')] * 2),
        (f"{ONE}\nDone. ", "Done. ", [ToolCall("f", '{"city": "東京"}')]),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
        (
            '<tool_call>{"arguments": {"a":1.50, "b": "\\ud800"}, "name": "f"}</tool_call>',
            "",
            [("f", '{"a":1.50, "b": "\\ud800"}')],
        ),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (
            '<tool_call>{"name": "f", "arguments": {"a": {}}, "id": {"b": 1}}</tool_call>',
            "",
            [("f", '{"a": {}}')],
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": "}\\""}}', "", [("f", '{"a": "}\\""}')]),
        (
            '<tool_call>{"name": "f", "arguments": {}}\n<tool_call>{"name": "g", "arguments": {}}',
            "",
            [("f", "{}"), ("g", "{}")],
        ),
    ],
)
def test_calls_are_read(text, content, calls):
    calls = [each if isinstance(each, ToolCall) else ToolCall(*each) for each in calls]
    assert read(text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        "<tool_call>no JSON</tool_call> ",
        ' <tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 1',
        '<tool_call>{"name": "f",}</tool_call>\n',
        '<tool_call>{"name": "f"} {}</tool_call>',
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        "<tool_call>[1]</tool_call>",
        "<tool_call>" + '{"a":' * 5000 + "</tool_call>",
        "a < b <tool_cal",
    ],
)
def test_what_is_malformed_is_content(text):
    assert read(text) == (text, [])


def test_an_answer_that_is_cut_keeps_the_arguments_it_has():
    whole = '<tool_call>{"name": "f", "arguments": {"a": "b</tool'
    assert read(whole) == ("", [ToolCall("f", '{"a": "b</tool')])


def test_arguments_come_as_they_are_made():
    parser = HermesToolParser()
    assert parser.feed('<tool_call>\n{"name": "f", "argu') == []
    assert parser.feed('ments": {"a": "o') == [CallStart(0, "f"), CallArguments(0, '{"a": "o')]
    assert parser.feed("ne\\") == [CallArguments(0, "ne")]
    assert parser.feed('n"}') == [CallArguments(0, '\\n"}')]
    assert parser.feed("}\n</tool_call>") == []
    assert parser.finish() == []


def test_ids_are_unique():
    starts = [p for p in parse(HermesToolParser(), [ONE * 2]) if isinstance(p, CallStart)]
    assert starts[0].id != starts[1].id
    assert all(start.id.startswith("call_") for start in starts)


def test_there_is_a_most_of_calls():
    pieces = parse(HermesToolParser(), [ONE * (MAX_BLOCKS + 1)])
    assert sum(isinstance(piece, CallStart) for piece in pieces) == MAX_BLOCKS
    assert pieces[-1] == Content(ONE)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=6), values, max_size=3), min_size=1, max_size=3))
def test_any_arguments_come_back_as_they_were(all_arguments):
    calls = [json.dumps({"name": "f", "arguments": each}) for each in all_arguments]
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    content, read_calls = read(text)
    assert content == ""
    assert [json.loads(call.arguments) for call in read_calls] == all_arguments
