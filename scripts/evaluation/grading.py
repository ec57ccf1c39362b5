"""Grades replies to held-out questions, for training runs and for the engine alike."""

import json
import re
from collections.abc import Mapping
from typing import Any

THINK, END_THINK = "<think>", "</think>"
_TOOL_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_INTEGER = re.compile(r"\d+")


def after_thinking(reply: str) -> str:
    """The reply without its think block, if it has one."""
    return reply.rpartition(END_THINK)[2].strip()


def thinks_once(reply: str) -> bool:
    """Whether the reply opens with one think block, closes it, and says something after it."""
    tags_once = reply.count(THINK) == 1 and reply.count(END_THINK) == 1
    return tags_once and reply.startswith(THINK) and bool(after_thinking(reply))


def sum_is_right(reply: str, answer: str) -> bool:
    """Whether the last number of the reply is the last number of the answer."""
    numbers = _INTEGER.findall(after_thinking(reply))
    return bool(numbers) and numbers[-1] == _INTEGER.findall(answer)[-1]


def tool_calls(reply: str) -> list[Mapping[str, Any]] | None:
    """The calls in a reply; None if there are none or one is not JSON with name and arguments."""
    texts = _TOOL_CALL.findall(after_thinking(reply))
    try:
        calls = [json.loads(text) for text in texts]
    except json.JSONDecodeError:
        return None
    well_formed = all(
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("arguments"), dict)
        for call in calls
    )
    return calls if calls and well_formed else None


def tool_names_are_right(reply: str, answer: str) -> bool:
    """Whether every call parses and has the name that the answer has."""
    calls, wanted = tool_calls(reply), tool_calls(answer)
    if calls is None or wanted is None:
        return False
    return [call["name"] for call in calls] == [call["name"] for call in wanted]


def tool_calls_are_right(reply: str, answer: str) -> bool:
    """Whether the calls equal the answer's, arguments included."""
    calls = tool_calls(reply)
    return calls is not None and calls == tool_calls(answer)


def json_is_right(reply: str, answer: str) -> bool:
    """Whether the reply is JSON and means what the answer means."""
    try:
        return json.loads(after_thinking(reply)) == json.loads(answer)
    except json.JSONDecodeError:
        return False


def text_is_right(reply: str, answer: str) -> bool:
    """Whether the reply is the answer, word for word."""
    return after_thinking(reply) == answer
