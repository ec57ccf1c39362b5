"""Tool calls in JSON: names, arguments as they come, several of them, and what is no call."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxinfer.outputs import CallArguments, CallStart, Content
from jaxinfer.serving.parsers.answer import ToolCall, parse_answer
from jaxinfer.serving.parsers.hermes import HermesToolParser
from jaxinfer.serving.parsers.tool_parser import MAX_BLOCKS
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
        "<tool_call>[]</tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"function": "f"}</tool_call>',
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        "<tool_call>[1]</tool_call>",
        "<tool_call>" + '{"a":' * 5000 + "</tool_call>",
        "a < b <tool_cal",
    ],
)
def test_what_is_malformed_is_content(text):
    assert read(text) == (text, [])


A, B = ("f", '{"a": 1}'), ("g", '{"b": {}}')
NAMED_A = '{"name": "f", "arguments": {"a": 1}}'
NAMED_B = '{"name": "g", "arguments": {"b": {}}}'


@pytest.mark.parametrize(
    ("block", "calls"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [A]),
        ('{"parameters": {"a": 1}, "name": "f"}', [A]),
        ('{"name": "f", "parameters": {}, "arguments": {"a": 1}}', [A]),
        (r'{"name": "f", "arguments": "{\"a\": 1}"}', [A]),
        ('{"name": "f", "arguments": "hello"}', [("f", '"hello"')]),
        ('{"name": "f", "arguments": ""}', [("f", "{}")]),
        ('{"name": "f", "arguments": null}', [("f", "{}")]),
        ('{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', [A]),
        (f"{NAMED_A}\n{NAMED_B}", [A, B]),
        (f"{NAMED_A}, {NAMED_B}", [A, B]),
        (f"{NAMED_A};{NAMED_B}{NAMED_A}", [A, B, A]),
        (f"[{NAMED_A}, {NAMED_B}]", [A, B]),
        (f"[\n{NAMED_A}\n]\n", [A]),
        ('[{"name": "f", "parameters": {"a": 1}}, {"arguments": {"b": {}}, "name": "g"}]', [A, B]),
        (f'{NAMED_A} {{"arguments": {{"b": {{}}}}, "name": "g"}}', [A, B]),
        ('{"name": "f", "arguments": {"a": 1}, "id": {"c": "}"}} ' + NAMED_B, [A, B]),
        (f"{NAMED_A} and {NAMED_B}", [A]),
        (f'{NAMED_A} {{"no": "call"}}', [A]),
        ('{"name": "f", "arguments": {"a": 1},}', [A]),
        ('{"name": "f", "arguments": {"a": 1,\n}}\n', [("f", '{"a": 1\n}')]),
        ('{"name": "f", "parameters": {"a": [1,], }, }', [("f", '{"a": [1] }')]),
        ('{"name": "f",}', [("f", "{}")]),
        ('{"name": "f", "arguments": {"a": "b\n"}}', [("f", '{"a": "b\\n"}')]),
        ('{"arguments": {"a": "b\n"}, "name": "f"}', [("f", '{"a": "b\\n"}')]),
        ('{"name": "f"} {}', [("f", "{}")]),
    ],
)
@pytest.mark.parametrize("close", ["</tool_call>", ""], ids=["closed", "open"])
def test_calls_are_read_however_they_are_written(block, calls, close):
    text = f"A. <tool_call>{block}{close}"
    expected = ("A.", [ToolCall(*each) for each in calls])
    assert read(text) == expected
    answer = parse(HermesToolParser(), list(text))
    assert [(p.index, p.name) for p in answer if isinstance(p, CallStart)] == [
        (i, name) for i, (name, _) in enumerate(calls)
    ]
    made = ["".join(p.text for p in answer if _is_of(p, i)) for i in range(len(calls))]
    assert made == [arguments for _, arguments in calls]


def _is_of(piece, index):
    return isinstance(piece, CallArguments) and piece.index == index


@pytest.mark.parametrize(
    ("malformed", "content", "calls"),
    [
        ('<tool_call>{"name": f}', '<tool_call>{"name": f}', [A]),
        ('<tool_call>{"name": f}</tool_call>', '<tool_call>{"name": f}</tool_call>', [A]),
        ("<tool_call>", "<tool_call>", [A]),
        ('<tool_call>{"name": "g", "arguments": {"b": ', "", [("g", '{"b": '), A]),
        ('<tool_call>{"name": "g", "arguments": {"b": {}}', "", [B, A]),
        ('<tool_call>{"name": "g", "parameters": {"b": {}}}', "", [B, A]),
    ],
)
def test_a_good_call_comes_out_behind_a_malformed_one(malformed, content, calls):
    text = f"{malformed}<tool_call>{NAMED_A}</tool_call>"
    assert read(text) == (content, [ToolCall(*each) for each in calls])


def test_an_opening_tag_within_a_string_is_part_of_it():
    arguments = '{"a": "<tool_call>{"}'
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert read(text) == ("", [ToolCall("f", arguments)])


def test_calls_of_one_block_are_counted():
    for block in (NAMED_A * 200, '{"name": "f"}' * 200):
        content, calls = read(f"<tool_call>{block}</tool_call>{ONE}")
        assert (len(calls), content) == (MAX_BLOCKS, ONE)


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
    # The closing tag is a token that ends a call wherever it stands; the next test has it.
    assume(not any("</tool_call>" in call for call in calls))
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    content, read_calls = read(text)
    assert content == ""
    assert [json.loads(call.arguments) for call in read_calls] == all_arguments


def test_a_closing_tag_ends_a_call_even_within_a_string():
    call = json.dumps({"name": "f", "arguments": {"a": "b</tool_call>"}})
    content, (found,) = read(f"<tool_call>\n{call}\n</tool_call>")
    assert (found.name, found.arguments) == ("f", '{"a": "b')
    assert content == '"}}\n</tool_call>'
