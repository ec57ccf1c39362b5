"""Tool calls as Qwen3 and Hermes write them: `<tool_call>{"name": ..., "arguments": {...}}`.

The closing tag ends a call wherever it stands, in a string too, as in vLLM. A call is taken once
its name and the bracket of its arguments are there; from then on its arguments are passed on as
they come, well-formed or not, because a stream can't take them back. What is malformed before that
is content.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxinfer.serving.parsers.held_back import HeldBack, partial_tag
from jaxinfer.serving.parsers.json_object import Member, ObjectEnd, object_members, unescaped_length
from jaxinfer.serving.parsers.pieces import (
    MAX_BLOCKS,
    CallArguments,
    CallStart,
    Content,
    Piece,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_MOST_HEAD_CHARS = 1024
_MOST_PART_CHARS = 1 << 14  # of which a call that ends early leaves the rest to be searched again
_HEAD = re.compile(
    r'\s*+\{\s*+"name"\s*+:\s*+"([^"\\\x00-\x1f]++)"\s*+,\s*+"arguments"\s*+:\s*+(?=\{)'
)
_NO_ARGUMENTS = Member({}, "{}")
_TAG = re.compile("</?tool_call>")

_State = Callable[[str, int], int | None]
"""(text, position) -> the position to go on at with the state that is set by then. None: the rest,
from `_held_from`, waits for more text."""


class HermesToolParser:
    """Reads `<tool_call>` blocks; the rest is content.

    White space beside a call is left out.

    Args:
        tools: not needed; other parsers read the types of arguments there.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        del tools
        self._state: _State = self._content
        self._spaces = HeldBack()
        self._pieces: list[Piece] = []
        self._held = ""
        self._held_from = 0
        self._block: list[str] = []
        self._num_blocks = 0
        self._num_calls = 0
        self._end = ObjectEnd()

    def feed(self, text: str) -> Sequence[Piece]:
        """See `StreamParser`."""
        if not text:
            return ()
        if self._state == self._content and self._num_blocks == MAX_BLOCKS:
            return [Content(text)]
        self._pieces = []
        for start in range(0, len(text), _MOST_PART_CHARS):
            self._feed(self._held + text[start : start + _MOST_PART_CHARS])
        return self._pieces

    def finish(self) -> Sequence[Piece]:
        """See `StreamParser`."""
        self._pieces = []
        held = self._held
        if self._state == self._content:
            self._add_content(held)
            self._add_raw(self._spaces.take())
        elif self._state == self._arguments:
            self._add_arguments(held, 0, len(held))
        elif self._state in (self._head, self._whole):
            self._end_block("".join(self._block) + held, closed=False)
            self._add_raw(self._spaces.take())
        return self._pieces

    def _feed(self, text: str) -> None:
        position: int | None = 0
        while position is not None:
            position = self._state(text, position)
        self._held = text[self._held_from :]

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
        self._num_blocks += 1
        self._block = []
        self._state = self._head
        return at + len(OPEN)

    def _head(self, text: str, start: int) -> int | None:
        """The beginning of a block, up to its arguments; held until they are found."""
        limit = min(len(text), start + _MOST_HEAD_CHARS)
        close = text.find(CLOSE, start, limit)
        head = _HEAD.match(text, start, close if close >= 0 else limit)
        if head:
            self._start_call(head[1])
            self._end = ObjectEnd()
            self._state = self._arguments
            return head.end()
        if close < 0 and limit - start < _MOST_HEAD_CHARS:
            return self._wait(start)
        self._state = self._whole
        return start

    def _whole(self, text: str, start: int) -> int | None:
        """A block that can only be judged as a whole: its name comes last, or it is malformed."""
        close = text.find(CLOSE, start)
        if close < 0:
            ready = partial_tag(text, start, (CLOSE,))
            self._block.append(text[start:ready])
            return self._wait(ready)
        self._end_block("".join([*self._block, text[start:close]]), closed=True)
        self._state = self._content
        return close + len(CLOSE)

    def _arguments(self, text: str, start: int) -> int | None:
        close = text.find(CLOSE, start)
        end = close if close >= 0 else partial_tag(text, start, (CLOSE,))
        if close < 0:
            end = unescaped_length(text, start, end)
        stop = self._add_arguments(text, start, end)
        if stop is not None:
            self._state = self._rest
            return start + stop
        if close < 0:
            return self._wait(end)
        self._state = self._content
        return close + len(CLOSE)

    def _rest(self, text: str, start: int) -> int | None:
        """After the arguments: the rest of a block is ignored; a model may forget the tag."""
        tag = _TAG.search(text, start)
        if tag is None:
            return self._wait(partial_tag(text, start, (OPEN, CLOSE)))
        self._state = self._content
        return tag.end() if tag[0] == CLOSE else tag.start()

    def _wait(self, position: int) -> None:
        self._held_from = position

    def _end_block(self, block: str, *, closed: bool) -> None:
        call = _read_call(block)
        if call is None:
            self._add_content(OPEN + block + CLOSE * closed)
            return
        self._start_call(call[0])
        self._pieces.append(CallArguments(self._num_calls - 1, call[1]))

    def _start_call(self, name: str) -> None:
        self._spaces = HeldBack(drops_start=True)
        self._pieces.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def _add_arguments(self, text: str, start: int, end: int) -> int | None:
        """Pass on what belongs to the arguments; its length if they end there."""
        part = text[start:end]
        stop = self._end.find(part)
        if part:
            self._pieces.append(CallArguments(self._num_calls - 1, part[:stop]))
        return stop

    def _add_content(self, text: str) -> None:
        self._add_raw(self._spaces.add(text))

    def _add_raw(self, text: str) -> None:
        if text:
            self._pieces.append(Content(text))


def _read_call(block: str) -> tuple[str, str] | None:
    """Name and arguments of a whole block; None if it is malformed."""
    try:
        members = object_members(block)
        name, arguments = members["name"].value, members.get("arguments", _NO_ARGUMENTS)
        is_call = isinstance(name, str) and isinstance(arguments.value, dict)
        # Half of a surrogate pair can't be sent; this raises.
        return (name, arguments.text) if is_call and name.encode() else None
    except (KeyError, ValueError, RecursionError):
        return None
