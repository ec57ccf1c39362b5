"""Every parser: the parts of a stream make the same answer as the whole text, in linear time."""

import time

import pytest
from hypothesis import given, settings

from jaxinfer.serving.parsers.answer import AnswerParser
from jaxinfer.serving.parsers.hermes import HermesToolParser
from jaxinfer.serving.parsers.pieces import CallArguments, CallStart, Content
from jaxinfer.serving.parsers.qwen3_coder import Qwen3CoderToolParser
from jaxinfer.serving.parsers.reasoning import Qwen3ReasoningParser
from jaxinfer.serving.parsers.registry import TOOL_PARSERS
from tests.serving.parsers.splitting import SCHEMAS, parse, split_texts

PARSERS = {
    "thinking": lambda: Qwen3ReasoningParser(is_open=False),
    "thinking, opened": lambda: Qwen3ReasoningParser(is_open=True),
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
FUNCTION = "<tool_call>\n<function=f>\n<parameter=text>\n"
HOSTILE = {
    "brackets of tags": ("", "<"),
    "openings": ("", "<tool_call>"),
    "almost openings": ("", "<tool_cal"),
    "closings": ("", "</tool_call>"),
    "thoughts": ("", "<think>"),
    "almost thoughts": ("<think>", "</think"),
    "line breaks in thoughts": ("<think>", "\n"),
    "spaces": ("", " "),
    "malformed blocks": ("", "<tool_call>{</tool_call>"),
    "empty calls": ("", '<tool_call>{"name":"a","arguments":{}}</tool_call>'),
    "depth": (CALL, "["),
    "objects": (CALL, '{"a":'),
    "arrays": (CALL + "[", "[],"),
    "quotes": (CALL, '"'),
    "escapes": (CALL + '"', "\\"),
    "almost closings": (CALL + '"', "</tool_call"),
    "a name": ('<tool_call>{"name": "', "a"),
    "heads": ("", '<tool_call>{"name": "f", "arguments": '),
    "calls left open": ("", '<tool_call>{"name": "f", "arguments": {}}'),
    "functions": ("", "<function="),
    "empty functions": ("", "<function=f></function>"),
    "parameters": (FUNCTION, "<parameter=a>"),
    "almost parameters": (FUNCTION, "<parameter=abc"),
    "breaks of a value": (FUNCTION, "\n"),
    "wide characters": ("", "é👩"),
}


@pytest.mark.parametrize("tools", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_of_hostile_text_is_read_at_once(hostile, tools):
    begin, unit = hostile
    text = begin + unit * (MEGABYTE // len(unit))
    parser = AnswerParser(reasoning="qwen3", tools=tools)
    start = time.process_time()
    parser.feed(text)
    parser.finish()
    # 40 ms at most where nothing else runs; an order of magnitude more would be a second scan.
    assert time.process_time() - start < 0.4


@pytest.mark.parametrize("tools", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_what_is_held_back_is_short(hostile, tools):
    """So that each part costs what is in it, and no more for all that came before."""
    begin, unit = hostile
    parsers = [Qwen3ReasoningParser(is_open=False), TOOL_PARSERS[tools]([])]
    for parser in parsers:
        parser.feed(begin)
        for _ in range(40):
            parser.feed(unit * (2000 // len(unit)))
            assert len(vars(parser)["_held"]) <= 1100
