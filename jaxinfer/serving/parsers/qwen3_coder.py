"""Tool calls as Qwen3-Coder writes them: `<function=name>`, then `<parameter=name>` for each value.

A value ends at its closing tag, at the next parameter or at the end of the function. Texts are
passed on as they come, other values once they are whole, each as the tool's schema declares it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxinfer.serving.parsers.argument_types import ArgumentTypes, as_json
from jaxinfer.serving.parsers.held_back import HeldBack, partial_tag
from jaxinfer.serving.parsers.pieces import (
    MAX_BLOCKS,
    CallArguments,
    CallStart,
    Content,
    Piece,
)

MAX_PARAMETERS = 1024
"""Most parameters of one call; later ones are left out."""

_CLOSE = "</tool_call>"
_MOST_NAME_CHARS = 256
_MOST_SPACES = 64
_MOST_HEAD_CHARS = _MOST_SPACES + len("<function=>") + _MOST_NAME_CHARS
_OPENINGS = ("<tool_call>", "<function=")
_OPENING = re.compile("<(?:tool_call>|function=)")
_HEAD = re.compile(r"\s{0,64}+<function=([^<>\s]{1,256}+)>")
_NEXT = re.compile(r"<(?:parameter=([^<>]{1,256}+)>|/function>|/tool_call>)")
_FUNCTION_ENDS = ("</function>", _CLOSE)
_FUNCTION_END = re.compile("</(?:function|tool_call)>")
_ENDS = ("</parameter>", "<parameter=", "</function>", _CLOSE)
_END = re.compile("<(?:/parameter>|parameter=|/function>|/tool_call>)")

_State = Callable[[str, int], int | None]
"""A state of the parser: a function as in `hermes.py`."""


class Qwen3CoderToolParser:
    """Reads `<function=...>` blocks, within `<tool_call>` or without; the rest is content.

    White space beside a call is left out.

    Args:
        tools: of the request; their schemas say which values are texts.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._types = ArgumentTypes(tools)
        self._state: _State = self._content
        self._spaces = HeldBack()
        self._pieces: list[Piece] = []
        self._held = ""
        self._held_from = 0
        self._opening = ""
        self._num_blocks = 0
        self._num_calls = 0
        self._num_parameters = 0
        self._function = ""
        self._is_text = False
        self._value: list[str] = []
        self._breaks = HeldBack("\n")

    def feed(self, text: str) -> Sequence[Piece]:
        """See `StreamParser`."""
        if not text:
            return ()
        if self._state == self._content and self._num_blocks == MAX_BLOCKS:
            return [Content(text)]
        self._pieces = []
        text = self._held + text
        position: int | None = 0
        while position is not None:
            position = self._state(text, position)
        self._held = text[self._held_from :]
        return self._pieces

    def finish(self) -> Sequence[Piece]:
        """See `StreamParser`."""
        self._pieces = []
        if self._state in (self._content, self._head):
            opening = self._opening if self._state == self._head else ""
            self._add_content(opening + self._held)
            self._add_raw(self._spaces.take())
        elif self._state == self._after:
            self._add_content(self._held)
        elif self._state == self._in_value and self._is_text:
            self._add_text(self._breaks.add(self._held))
        return self._pieces

    def _content(self, text: str, start: int) -> int | None:
        if self._num_blocks == MAX_BLOCKS:
            self._add_raw(self._spaces.take() + text[start:])
            return self._wait(len(text))
        tag = _OPENING.search(text, start)
        if tag is None:
            ready = partial_tag(text, start, _OPENINGS)
            self._add_content(text[start:ready])
            return self._wait(ready)
        self._add_content(text[start : tag.start()])
        self._num_blocks += 1
        self._state = self._head
        # The function's own tag is read again, with its name.
        self._opening = tag[0] if tag[0] == _OPENINGS[0] else ""
        return tag.end() if self._opening else tag.start()

    def _head(self, text: str, start: int) -> int | None:
        head = _HEAD.match(text, start, start + _MOST_HEAD_CHARS)
        if head is None:
            if len(text) - start < _MOST_HEAD_CHARS:
                return self._wait(start)
            return self._refuse_head(text, start)
        self._function = head[1]
        self._spaces = HeldBack(drops_start=True)
        self._num_parameters = 0
        self._pieces.append(CallStart(self._num_calls, head[1]))
        self._num_calls += 1
        self._add_arguments("{")
        self._state = self._between
        return head.end()

    def _refuse_head(self, text: str, start: int) -> int:
        """Make an opening content, because no function follows."""
        self._state = self._content
        if self._opening:
            self._add_content(self._opening)
            return start
        self._add_content(text[start : start + 1])  # or its tag would be found again
        return start + 1

    def _between(self, text: str, start: int) -> int | None:
        """Between values, where text is ignored."""
        tags = _NEXT if self._num_parameters < MAX_PARAMETERS else _FUNCTION_END
        tag = tags.search(text, start)
        if tag is None:
            return self._wait(_unfinished_tag(text, start))
        if tag[0] in _FUNCTION_ENDS:
            self._add_arguments("}")
            self._state = self._content if tag[0] == _CLOSE else self._after
            return tag.end()
        name = tag[1].strip()
        separator = ", " if self._num_parameters else ""
        self._num_parameters += 1
        self._is_text = self._types.is_text(self._function, name)
        quote = '"' if self._is_text else ""
        self._add_arguments(f"{separator}{json.dumps(name, ensure_ascii=False)}: {quote}")
        self._value = []
        self._breaks = HeldBack("\n")
        self._state = self._value_start
        return tag.end()

    def _value_start(self, text: str, start: int) -> int | None:
        """One line break in front of a value belongs to the format."""
        if start == len(text):
            return self._wait(start)
        self._state = self._in_value
        return start + (text[start] == "\n")

    def _in_value(self, text: str, start: int) -> int | None:
        tag = _END.search(text, start)
        end = tag.start() if tag else partial_tag(text, start, _ENDS)
        if self._is_text:
            self._add_text(self._breaks.add(text[start:end]))
        else:
            self._value.append(text[start:end])
        if tag is None:
            return self._wait(end)
        self._end_value()
        self._state = self._between
        return tag.end() if tag[0] == _ENDS[0] else tag.start()

    def _end_value(self) -> None:
        if self._is_text:
            self._add_text(self._breaks.take()[:-1])  # the last line break is the format's
            self._add_arguments('"')
        else:
            self._add_arguments(as_json("".join(self._value).removesuffix("\n")))

    def _after(self, text: str, start: int) -> int | None:
        """After a function: the closing tag, which a model may forget."""
        window = text[start : start + _MOST_SPACES + len(_CLOSE)]
        rest = window.lstrip()
        may_follow = len(rest) < len(_CLOSE) and _CLOSE.startswith(rest)
        if may_follow and len(window) < _MOST_SPACES + len(_CLOSE):
            return self._wait(start)
        self._state = self._content
        if rest.startswith(_CLOSE):
            return text.index(_CLOSE, start) + len(_CLOSE)
        return start

    def _wait(self, position: int) -> None:
        self._held_from = position

    def _add_text(self, text: str) -> None:
        self._add_arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _add_arguments(self, text: str) -> None:
        if text:
            self._pieces.append(CallArguments(self._num_calls - 1, text))

    def _add_content(self, text: str) -> None:
        self._add_raw(self._spaces.add(text))

    def _add_raw(self, text: str) -> None:
        if text:
            self._pieces.append(Content(text))


def _unfinished_tag(text: str, start: int) -> int:
    """Where a tag may begin that is not complete yet; one with a name has more text than others."""
    at = text.rfind("<", max(start, len(text) - _MOST_NAME_CHARS - len("<parameter=>")))
    return at if at >= 0 else len(text)
