"""Every parser: the parts of a stream make the same answer as the whole text, in linear time."""

import pytest
from hypothesis import given, settings

from jaxinfer.outputs import CallArguments, CallStart, Content
from jaxinfer.serving.parsers.answer import AnswerParser
from jaxinfer.serving.parsers.hermes import HermesToolParser
from jaxinfer.serving.parsers.qwen3_coder import Qwen3CoderToolParser
from jaxinfer.serving.parsers.reasoning import Qwen3ReasoningParser
from jaxinfer.serving.parsers.registry import TOOL_PARSERS
from tests.linear import assert_linear
from tests.serving.parsers.splitting import SCHEMAS, parse, split_texts

PARSERS = {
    "thinking": lambda: Qwen3ReasoningParser(is_open=False),
    "thinking, opened": lambda: Qwen3ReasoningParser(is_open=True),
    "thinking, with calls": lambda: Qwen3ReasoningParser(is_open=True, calls=True),
    "hermes": lambda: HermesToolParser(SCHEMAS),
    "qwen3_coder": lambda: Qwen3CoderToolParser(SCHEMAS),
    "all of hermes": lambda: AnswerParser(reasoning="qwen3", tools="hermes", schemas=SCHEMAS),
    "one call": lambda: AnswerParser(tools="hermes", parallel=False),
}


@pytest.mark.parametrize("make", PARSERS.values(), ids=PARSERS)
@settings(max_examples=120, deadline=None)
@given(split_texts())
def test_a_stream_put_together_is_the_plain_answer(make, given_text):
    text, parts = given_text
    assert parse(make(), parts) == parse(make(), [text])


@pytest.mark.parametrize("make", [PARSERS["hermes"], PARSERS["qwen3_coder"]])
@settings(max_examples=60, deadline=None)
@given(split_texts())
def test_text_without_calls_is_untouched_and_calls_are_numbered(make, given_text):
    text, parts = given_text
    pieces = parse(make(), parts)
    starts = [piece.index for piece in pieces if isinstance(piece, CallStart)]
    assert starts == list(range(len(starts)))
    for piece in pieces:
        if isinstance(piece, CallArguments):
            assert piece.text
    if not starts:
        assert "".join(p.text for p in pieces if isinstance(p, Content)) == text


MEGABYTE = 1_000_000

CALL = '<tool_call>{"name": "f", "arguments": {"a": '
WHOLE_CALL = '<tool_call>{"arguments": {"a": ['  # its name comes last
FUNCTION = "<tool_call>\n<function=f>\n<parameter=text>\n"
NUMBER = "<tool_call>\n<function=f>\n<parameter=number>\n["
HOSTILE = {
    "brackets of tags": ("", "<", ""),
    "openings": ("", "<tool_call>", ""),
    "almost openings": ("", "<tool_cal", ""),
    "closings": ("", "</tool_call>", ""),
    "thoughts": ("", "<think>", ""),
    "almost thoughts": ("<think>", "</think", ""),
    "line breaks in thoughts": ("<think>", "\n", ""),
    "spaces": ("", " ", ""),
    "malformed blocks": ("", "<tool_call>{</tool_call>", ""),
    "empty calls": ("", '<tool_call>{"name":"a","arguments":{}}</tool_call>', ""),
    "depth": (CALL, "[", ""),
    "objects": (CALL, '{"a":', ""),
    "arrays": (CALL + "[", "[],", ""),
    "quotes": (CALL, '"', ""),
    "escapes": (CALL + '"', "\\", ""),
    "almost closings": (CALL + '"', "</tool_call", ""),
    "a name": ('<tool_call>{"name": "', "a", ""),
    "heads": ("", '<tool_call>{"name": "f", "arguments": ', ""),
    "calls left open": ("", '<tool_call>{"name": "f", "arguments": {}}', ""),
    "members": ("<tool_call>{", '"a":1,', '"name": "f"}</tool_call>'),
    "arrays before a name": (WHOLE_CALL, "[],", '1]}, "name": "f"}</tool_call>'),
    "numbers before a name": (WHOLE_CALL, "1e-7,", '1]}, "name": "f"}</tool_call>'),
    "functions": ("", "<function=", ""),
    "empty functions": ("", "<function=f></function>", ""),
    "parameters": (FUNCTION, "<parameter=a>", ""),
    "almost parameters": (FUNCTION, "<parameter=abc", ""),
    "breaks of a value": (FUNCTION, "\n", ""),
    "arrays of a value": (NUMBER, "[],", "1]\n</parameter>"),
    "numbers of a value": (NUMBER, "1e-7,", "1]\n</parameter>"),
    "wide characters": ("", "é👩", ""),
    "commas before brackets": (CALL, "[1,],", ""),
    "commas and spaces": (CALL, ",  ", ""),
    "line breaks of a string": (CALL + '"', "\n", ""),
    "openings in a string": (CALL + '"', "<tool_call>", ""),
    "calls of a block": ("<tool_call>", '{"name":"a","arguments":{}}', ""),
    "names of a block": ("<tool_call>", '{"name":"a"}', "</tool_call>"),
    "calls of a list": ("<tool_call>[", '{"arguments":{},"name":"a"},', "</tool_call>"),
    "arguments as a text": (
        '<tool_call>{"name": "f", "arguments": "',
        '{\\"a\\": ',
        '"}</tool_call>',
    ),
    "other members": (CALL + '1}, "x": [', '"<",', ""),
    "openings in a block": ("", '<tool_call>{"a":1', ""),
    "functions begun": ("", "<tool_call>\n<function=f>\n", ""),
    "functions with bad names": ("", "<function={}>", ""),
    "ends in a value": (FUNCTION, "\n</parameter>x", ""),
    "ends and spaces": (FUNCTION, "</parameter>" + " " * 63, ""),
    "parameters in a value": (FUNCTION, "\n<parameter=text>\n", ""),
    "parameters once more": (FUNCTION, "</parameter>\n<parameter=text>", ""),
    "functions in a value": (FUNCTION, "\n<function=f>\n", ""),
    "calls in a value": (FUNCTION, "\n<tool_call>\n<function=f>\n", ""),
    "whole functions in a value": (FUNCTION, "\n<function=f>\n</function>", ""),
    "breaks before null": (FUNCTION.replace("text", "maybe"), "\n", ""),
    "Python's strings": (NUMBER, "'\\'',", "]\n</parameter>\n</function>"),
    "Python's words": (NUMBER, "True,", "]\n</parameter>\n</function>"),
}
"""The beginning, what is repeated, and the end."""


@pytest.mark.parametrize("part_chars", [2 * MEGABYTE, 1000], ids=["whole", "in parts"])
@pytest.mark.parametrize("tools", TOOL_PARSERS)
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_the_time_for_hostile_text_is_linear(hostile, tools, part_chars):
    begin, unit, end = hostile

    def reading(size):
        text = begin + unit * (size // len(unit)) + end
        parts = [text[at : at + part_chars] for at in range(0, len(text), part_chars)]

        def read():
            parser = AnswerParser(reasoning="qwen3", tools=tools, schemas=SCHEMAS)
            for part in parts:
                parser.feed(part)
            parser.finish()

        return read

    assert_linear(reading, MEGABYTE // 16, MEGABYTE // 2)


@pytest.mark.parametrize("tools", TOOL_PARSERS)
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_what_is_held_back_is_short(hostile, tools):
    """So that each part costs what is in it, and no more for all that came before."""
    begin, unit, _ = hostile
    parsers = [Qwen3ReasoningParser(is_open=False), TOOL_PARSERS[tools](SCHEMAS)]
    for parser in parsers:
        parser.feed(begin)
        for _ in range(40):
            parser.feed(unit * (2000 // len(unit)))
            assert len(vars(parser)["_held"]) <= 1100
