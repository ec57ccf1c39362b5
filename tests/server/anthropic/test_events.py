"""The events of an answer: in whatever parts it comes, they make the answer without a stream."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.outputs import Reasoning
from jaxinfer.server.anthropic.events import MessageEvents, input_of, whole_answer
from jaxinfer.serving.parsers.answer import AnswerParser
from tests.server.anthropic.streams import events_of, put_together, without_ids
from tests.server.anthropic.test_messages import CALL

BEGUN = {
    "id": "msg-1",
    "type": "message",
    "role": "assistant",
    "model": "tiny",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 0},
}
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
TEXTS = st.text(alphabet="ab{}<>/\n\"' 東👨\u200d\ufffd", max_size=8)
PARTS = st.sampled_from(
    ["<think>\n", "</think>\n\n", "I look.", CALL, CALL[:40], CALL[:-14], "<tool_call>", '"}}']
)


def pieces_in_parts(text, length):
    parser = AnswerParser(reasoning="qwen3", tools="hermes")
    for start in range(0, len(text), length):
        yield parser.feed(text[start : start + length])
    yield parser.finish()


def streamed(parts, reason, stopped_by):
    events = MessageEvents(copy.deepcopy(BEGUN))
    written = list(events.begin())
    for pieces in parts:
        for piece in pieces:
            written += events.add(piece)
    written += events.end(reason, stopped_by, USAGE)
    return put_together(events_of(b"".join(written).decode()))


@settings(max_examples=300, deadline=None, database=None)
@given(
    parts=st.lists(PARTS | TEXTS, max_size=6),
    length=st.integers(1, 9),
    reason=st.sampled_from(["stop", "length"]),
    stopped_by=st.sampled_from([None, "x", 7]),
    is_shown=st.booleans(),
)
def test_any_answer_in_any_parts_is_the_same_with_and_without_a_stream(
    parts, length, reason, stopped_by, is_shown
):
    text = "".join(parts)
    shown = [
        [piece for piece in pieces if is_shown or not isinstance(piece, Reasoning)]
        for pieces in pieces_in_parts(text, length)
    ]
    at_once = [piece for pieces in pieces_in_parts(text, len(text) + 1) for piece in pieces]
    whole_pieces = [each for each in at_once if is_shown or not isinstance(each, Reasoning)]
    whole = whole_answer(copy.deepcopy(BEGUN), whole_pieces, reason, stopped_by, USAGE)
    made = streamed(shown, reason, stopped_by)
    assert without_ids(made) == without_ids(whole)
    assert made["usage"] == whole["usage"]
    kinds = [block["type"] for block in whole["content"]]
    assert kinds
    assert is_shown or "thinking" not in kinds
    ended = "tool_use" if "tool_use" in kinds else "end_turn"
    ended = "stop_sequence" if ended == "end_turn" and stopped_by == "x" else ended
    assert whole["stop_reason"] == ("max_tokens" if reason == "length" else ended)
    assert (whole["stop_sequence"] == "x") == (whole["stop_reason"] == "stop_sequence")


def test_tokens_are_counted_as_anthropic_does():
    assert whole_answer(copy.deepcopy(BEGUN), [], "stop", None, USAGE)["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
    }


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1, "b": [2, 3', {"a": 1, "b": [2, 3]}),
        ('{"a": 1, "b": "cu', {"a": 1}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("no JSON", {"INVALID_JSON": "no JSON"}),
        ("{" * 100_000, {"INVALID_JSON": "{" * 100_000}),
    ],
)
def test_arguments_are_an_object_whatever_the_model_writes(arguments, read):
    assert input_of(arguments) == read
