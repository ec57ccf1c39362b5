"""Tool calls as Qwen3 and Hermes write them: `<tool_call>{"name": ..., "arguments": {...}}`.

The closing tag ends a call wherever it stands, in a string too, as in vLLM. A call is taken once
its name and the bracket of its arguments are there; from then on its arguments are passed on as
they come, well-formed or not, because a stream can't take them back; only commas before a bracket
and line breaks within strings are repaired. A block may hold several calls, also as a list; a call
may have variations: `parameters` for `arguments`, these as a JSON text, or an object `function`
around both. Such a call is parsed once it is whole. A malformed block is content.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.outputs import Piece
from jaxinfer.serving.parsers.held_back import partial_tag
from jaxinfer.serving.parsers.json_object import (
    Member,
    ObjectEnd,
    certain_length,
    mended,
    object_members,
)
from jaxinfer.serving.parsers.tool_parser import MAX_BLOCKS, ToolParser

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_MOST_HEAD_CHARS = 1024
_MOST_PART_CHARS = 1 << 14  # the rest of which is searched again after a call that ends early
_HEAD = re.compile(
    r'\s*+(?:\[\s*+)?\{\s*+"name"\s*+:\s*+"([^"\\\x00-\x1f]++)"\s*+,\s*+"arguments"\s*+:\s*+(?=\{)'
)
_TAG = re.compile("</?tool_call>")
_BETWEEN = re.compile(r"[\s,;\[\]]*+")


class HermesToolParser(ToolParser):
    """Reads `<tool_call>` blocks; it needs no tools."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        del tools
        super().__init__()
        self._block: list[str] = []
        self._is_first = True
        self._end = ObjectEnd()

    def finish(self) -> Sequence[Piece]:
        """The rest, at the end of the text; see `ToolParser.finish`."""
        self._pieces = []
        held = self._held
        if self._state == self._content:
            self._add_content(held)
            self._add_raw(self._spaces.take())
        elif self._state == self._arguments:
            self._add_part(held)
        elif self._state in (self._head, self._whole):
            self._end_block("".join(self._block) + held, closed=False)
            self._add_raw(self._spaces.take())
        return self._pieces

    def _take(self, text: str) -> None:
        for start in range(0, len(text), _MOST_PART_CHARS):
            self._run(self._held + text[start : start + _MOST_PART_CHARS])

    def _content(self, text: str, start: int) -> int | None:
        if self._num_blocks == MAX_BLOCKS:
            self._add_raw(self._spaces.take() + text[start:])
            return self._wait(len(text))
        at = text.find(OPEN, start)
        if at < 0:
            ready = partial_tag(text, start, (OPEN,))
            self._add_content(text[start:ready])
            return self._wait(ready)
        self._add_content(text[start:at])
        self._is_first = True
        self._begin_call()
        return at + len(OPEN)

    def _head(self, text: str, start: int) -> int | None:
        """The beginning of a block, up to its arguments; held until they are found."""
        limit = min(len(text), start + _MOST_HEAD_CHARS)
        tag = _TAG.search(text, start, limit)
        head = _HEAD.match(text, start, tag.start() if tag else limit)
        if head:
            self._start_call(head[1])
            self._end = ObjectEnd()
            self._state = self._arguments
            return head.end()
        if tag is None and limit - start < _MOST_HEAD_CHARS:
            return self._wait(start)
        self._state = self._whole
        return start

    def _whole(self, text: str, start: int) -> int | None:
        """A block that can only be parsed as a whole: its name comes last, or it is malformed."""
        tag = _TAG.search(text, start)
        if tag is None:
            ready = partial_tag(text, start, (OPEN, CLOSE))
            self._block.append(text[start:ready])
            return self._wait(ready)
        self._state = self._content
        block = "".join([*self._block, text[start : tag.start()]])
        self._end_block(block, closed=tag[0] == CLOSE)
        return tag.end() if tag[0] == CLOSE else tag.start()

    def _arguments(self, text: str, start: int) -> int | None:
        close = text.find(CLOSE, start)
        end = close if close >= 0 else partial_tag(text, start, (OPEN, CLOSE))
        if close < 0:
            end = certain_length(text, start, end)
        over = self._add_part(text[start:end])
        if over is not None:
            self._end = ObjectEnd(depth=1)
            self._state = self._rest if over[1] else self._content
            return start + over[0]
        if close < 0:
            return self._wait(end)
        self._state = self._content
        return close + len(CLOSE)

    def _rest(self, text: str, start: int) -> int | None:
        """After the arguments: other members are ignored, up to the end of the call's object."""
        tag = _TAG.search(text, start)
        end = tag.start() if tag else partial_tag(text, start, (OPEN, CLOSE))
        end = end if tag else certain_length(text, start, end)
        over = self._end.find(text[start:end], OPEN)
        if over is not None:
            self._state = self._next
            return start + over[0]
        return self._wait(end) if tag is None else self._skip(text, tag.start())

    def _next(self, text: str, start: int) -> int | None:
        """After a call: another one of the same block; a model may forget the tag."""
        at = _BETWEEN.match(text, start).end()  # pyright: ignore[reportOptionalMemberAccess]
        if at == len(text):
            return self._wait(at)
        if text[at] == "{" and self._num_blocks < MAX_BLOCKS:
            self._is_first = False
            self._begin_call()
        else:
            self._state = self._skip
        return at

    def _skip(self, text: str, start: int) -> int | None:
        """The rest of a block, which is ignored."""
        tag = _TAG.search(text, start)
        if tag is None:
            return self._wait(partial_tag(text, start, (OPEN, CLOSE)))
        self._state = self._content
        return tag.end() if tag[0] == CLOSE else tag.start()

    def _begin_call(self) -> None:
        self._num_blocks += 1
        self._block = []
        self._state = self._head

    def _end_block(self, block: str, *, closed: bool) -> None:
        calls = _read_calls(block)[: MAX_BLOCKS + 1 - self._num_blocks]
        if not calls and self._is_first:
            self._add_content(OPEN + block + CLOSE * closed)
        self._num_blocks += max(0, len(calls) - 1)
        for name, arguments in calls:
            self._start_call(name)
            self._add_arguments(arguments)

    def _add_part(self, part: str) -> tuple[int, bool] | None:
        """Pass on a part of the arguments; returns their end, as `ObjectEnd.find`."""
        in_string = self._end.in_string
        over = self._end.find(part, OPEN)
        given = mended(part if over is None else part[: over[0]], in_string=in_string)
        self._add_arguments(given)
        return over


def _read_calls(block: str) -> list[tuple[str, str]]:
    """Name and arguments of each call of a whole block; none if it is malformed."""
    block = mended(block)
    calls: list[tuple[str, str]] = []
    position = 0
    try:
        while len(calls) < MAX_BLOCKS:
            start = _BETWEEN.match(block, position).end()  # pyright: ignore[reportOptionalMemberAccess]
            members, position = object_members(block, start)
            if "name" not in members and "function" in members:
                members, _ = object_members(members["function"].text)
            calls.append(_read_call(members))
    except (KeyError, TypeError, ValueError, RecursionError):
        pass  # text after the last call is ignored
    return calls


def _read_call(members: Mapping[str, Member]) -> tuple[str, str]:
    name = members["name"].value
    value, text = members.get("arguments") or members.get("parameters") or (None, "")
    if not (isinstance(name, str) and name) or isinstance(value, int | float | list):
        raise TypeError("no call")
    if not value:
        text = "{}"
    elif isinstance(value, str):
        text = _object_in(value) or text
    # Half of a surrogate pair can't be sent; this raises.
    (name + text).encode()
    return name, text


def _object_in(text: str) -> str | None:
    """The text if it is a JSON object, else None."""
    try:
        return text.strip() if isinstance(json.loads(text), dict) else None
    except ValueError:
        return None
