"""Tool calls as tags: values by their schema's types, and models that forget tags."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.outputs import CallArguments, CallStart
from jaxinfer.serving.parsers.answer import parse_answer
from jaxinfer.serving.parsers.qwen3_coder import MAX_PARAMETERS, Qwen3CoderToolParser
from tests.serving.parsers.splitting import SCHEMAS

TYPES = {
    "text": {"type": "string"},
    "either": {"type": ["string", "null"]},
    "number": {"type": "integer"},
    "flag": {"type": "boolean"},
    "list": {"type": "array"},
    "object": {"type": "object"},
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
    values = {"text": '1 "\\\n\n', "either": None, "number": 7, "flag": True}
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


GOOD = call(text="x", number="1")
BEGUN = "<tool_call>\n<function=f>\n"
OTHER = "<tool_call>\n<function=g>\n<parameter=number>\n2\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    "malformed",
    [
        "<tool_call>\n<function=f\n</function>\n</tool_call>",
        "<tool_call>\n<function=f\n<parameter=text>x</parameter>\n</function>\n</tool_call>",
        "<tool_call>no function</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call>\n<function={{name}}>\n</function>\n</tool_call>",
        "<tool_call>\n<function=a function>\n</tool_call>",
        "<tool_call>",
        "<function=",
        BEGUN,
        BEGUN * 3,
        "<function=f>\n",
    ],
)
def test_a_good_call_comes_out_behind_a_malformed_one(malformed):
    content, calls = read(malformed + GOOD)
    assert calls == [("f", {"text": "x", "number": 1})]
    assert content == malformed.rstrip()


@pytest.mark.parametrize(
    ("begun", "arguments"),
    [
        (BEGUN + "<parameter=text>\nx\n</parameter>\n", {"text": "x"}),
        (BEGUN + "<parameter=text>\nx\n", {"text": "x"}),
        (BEGUN + "<parameter=number>\n1\n", {"number": 1}),
        (BEGUN + "<parameter=either>\nnull\n", {"either": None}),
        ("<function=f>\n<parameter=text>x\n", {"text": "x"}),
        (BEGUN + "<parameter=tex\n", {}),
    ],
)
@pytest.mark.parametrize(
    "anew",
    [OTHER, OTHER + "\n" + OTHER, OTHER.removeprefix("<tool_call>\n"), OTHER + "\nDone."],
    ids=["one", "two", "without its tag", "text behind"],
)
def test_a_call_that_begins_within_another_is_one_of_its_own(begun, arguments, anew):
    content, calls = read(begun + anew)
    assert calls == [("f", arguments), *[("g", {"number": "2"})] * anew.count("<function=")]
    assert content == ("Done." if "Done." in anew else "")


LINES = "doc = '''\n{}\n'''"


@pytest.mark.parametrize(
    "value",
    [
        'print("<parameter=number>\\n", "</parameter>", "</function>", "<tool_call>")',
        LINES.format("<parameter=other>\nx\n</parameter>"),
        LINES.format("<parameter=text>\nx\n</parameter>"),
        LINES.format(GOOD),
        LINES.format(GOOD + "\n" + OTHER),
        LINES.format("<function=f>\n</function>"),
        "a</tool_call>b",
    ],
)
@pytest.mark.parametrize("name", ["text", "either", "free"])
def test_tags_within_a_value_are_part_of_it(value, name):
    written = {"text": "t", name: value}
    assert read(call(**written, flag="true")) == ("", [("f", {**written, "flag": True})])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<parameter=number>\n1\n</parameter>\n", '{"number": 1}'),
        ("<parameter=number>\n1\n</parameter>\n</func", '{"number": 1}'),
        ("<parameter=number>\n12", '{"number": 12'),
        ("<parameter=list>\n[1]\n</param", '{"list": [1]'),
        ("<parameter=text>\nab\n", '{"text": "ab'),
        ("<parameter=either>\nno", '{"either": "no'),
        ("<parameter=either>\nnul", '{"either": "nul"'),
        ("", "{}"),
    ],
)
@pytest.mark.parametrize("is_required", [False, True])
def test_an_answer_that_ends_early_keeps_what_it_has(text, arguments, is_required):
    """It is whole where nothing is missing that must be there."""
    required = ["number", "flag"] if is_required else []
    function = {"name": "f", "parameters": {"properties": TYPES, "required": required}}
    (made,) = parse_answer(
        BEGUN + text, tools="qwen3_coder", schemas=[{"function": function}]
    ).tool_calls
    assert made.arguments == (arguments.removesuffix("}") if is_required else arguments)


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
    assert parser.feed(">\n") == []
    assert parser.feed("<p") == [CallStart(0, "f"), CallArguments(0, "{")]
    assert parser.feed("arameter=text>\nab\n") == [
        CallArguments(0, '"text": '),
        CallArguments(0, '"ab'),
    ]
    assert parser.feed("c") == [CallArguments(0, "\\nc")]
    assert parser.feed("\n</parameter>\n") == []
    assert parser.feed("<parameter=number>\n1") == [
        CallArguments(0, '"'),
        CallArguments(0, ', "number": '),
    ]
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
