"""Tool calls as Qwen3-Coder writes them: `<function=name>`, then `<parameter=name>` for each value.

A value may hold such tags: it ends at a closing tag that another tag of the format follows, at a
parameter of the function that was not given yet, or at the end of the function. Texts are passed on
as they come, other values once they are whole, each as the tool's schema declares it. A call that
begins within another ends it, once it is certain not to be part of a value.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.outputs import Piece
from jaxinfer.serving.parsers.arguments.types import ANY, ArgumentTypes, FunctionSchema
from jaxinfer.serving.parsers.arguments.writer import ValueWriter
from jaxinfer.serving.parsers.held_back import partial_tag
from jaxinfer.serving.parsers.tool_parser import MAX_BLOCKS, ToolParser

MAX_PARAMETERS = 1024
"""Most parameters of one call; later ones are left out."""


def _any(*tags: str) -> str:
    return f"(?:{'|'.join(tags)})"


def _begun(*tags: str) -> str:
    """A pattern of text that may become one of the tags."""
    return _any(*(tag[:end] for tag in tags for end in range(len(tag) - 1, -1, -1)))


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_OF_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_OF_PARAMETER = "<parameter=", "</parameter>"
_OPENINGS, _ENDS = (_OPEN, _FUNCTION), (_END_OF_FUNCTION, _CLOSE)
_TAGS = (_PARAMETER, *_ENDS, *_OPENINGS)
_MARKS = (_END_OF_PARAMETER, *_TAGS)

_MOST_NAME_CHARS = 256
_MOST_SPACES = 64
_NAME = r"[^<>\s{}\"']{1,256}+"
_SPACES = r"\s{0,64}+"
_HEAD = re.compile(rf"{_SPACES}<function=({_NAME})>")
_BEGUN_HEAD = re.compile(rf"{_SPACES}(?:{_begun(_FUNCTION)}|<function=(?:{_NAME})?)")
_ARGUMENT = re.compile(r"([^<>]{1,256}+)>")
_BEGUN_ARGUMENT = re.compile(r"[^<>]{0,256}+")
_OPENING = re.compile(_any(*_OPENINGS))
_NEXT = re.compile(r"<(?:parameter=([^<>]{1,256}+)>|/function>|/tool_call>|tool_call>|function=)")
_LAST = re.compile(_any(*_ENDS, *_OPENINGS))
_MARK = re.compile(_any(*_MARKS))
_NESTED = re.compile(_any(_END_OF_PARAMETER, _FUNCTION, _END_OF_FUNCTION))

_FOLLOWING: Mapping[tuple[str, ...], tuple[re.Pattern[str], re.Pattern[str]]] = {
    tags: (re.compile(_SPACES + _any(*tags)), re.compile(_SPACES + _begun(*tags)))
    for tags in (_TAGS, _OPENINGS, (_CLOSE,))
}
"""By tags: patterns of white space followed by one of them, complete and incomplete."""


class Qwen3CoderToolParser(ToolParser):
    """Reads `<function=...>` blocks, within `<tool_call>` or without; schemas tell texts apart."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__()
        self._types = ArgumentTypes(tools)
        self._is_last = False
        self._opening = ""
        self._head_text = ""
        self._function = ""
        self._schema = FunctionSchema(None)
        self._given: set[str] = set()
        self._num_parameters = 0
        self._value = ValueWriter(ANY)
        self._is_on_lines = False
        self._begins_line = True
        self._nested: list[str] = []
        self._depth = 0
        self._holds_nested = True

    def finish(self) -> Sequence[Piece]:
        """The rest, at the end of the text; see `ToolParser.finish`."""
        self._pieces = []
        self._is_last = True
        self._run(self._held)
        if self._state == self._in_nested:
            self._restart("".join(self._nested))
        if self._state == self._content:
            self._add_raw(self._spaces.take())
        elif self._state in (self._value_start, self._in_value):
            self._add_arguments(self._value.cut())
        elif self._state == self._between and self._schema.required.keys() <= self._given:
            self._add_arguments("}")
        return self._pieces

    def _content(self, text: str, start: int) -> int | None:
        if self._num_blocks == MAX_BLOCKS:
            self._add_raw(self._spaces.take() + text[start:])
            return self._wait(len(text))
        tag = _OPENING.search(text, start)
        if tag is None:
            ready = self._ready(text, start, _OPENINGS)
            self._add_content(text[start:ready])
            return self._wait(ready)
        self._add_content(text[start : tag.start()])
        self._num_blocks += 1
        self._state = self._head
        # The function's own tag is read again, with its name.
        self._opening = tag[0] if tag[0] == _OPEN else ""
        return tag.end() if self._opening else tag.start()

    def _head(self, text: str, start: int) -> int | None:
        head = _HEAD.match(text, start)
        if head:
            self._head_text = self._opening + head[0]
            self._function = head[1]
            self._state = self._first
            return head.end()
        if not self._is_last and _BEGUN_HEAD.fullmatch(text, start):
            return self._wait(start)
        self._state = self._content  # no function follows
        if self._opening:
            self._add_content(self._opening)
            return start
        self._add_content(text[start : start + 1])  # or its tag would be found again
        return start + 1

    def _first(self, text: str, start: int) -> int | None:
        """After a function's name; a call that restarts before an argument is dropped."""
        is_anew = self._follows(text, start, _OPENINGS)
        if is_anew is None:
            return self._wait(start)
        if is_anew and _OPENING.search(text, start):
            self._add_content(self._head_text)
            self._state = self._content
            return start
        self._schema = self._types.of(self._function)
        self._given = set()
        self._num_parameters = 0
        self._start_call(self._function)
        self._add_arguments("{")
        self._state = self._between
        return start

    def _between(self, text: str, start: int) -> int | None:
        """Between values, where text is ignored."""
        tags = _NEXT if self._num_parameters < MAX_PARAMETERS else _LAST
        tag = tags.search(text, start)
        if tag is None:
            return self._wait(_unfinished_tag(text, start))
        if tag[0] in _ENDS:
            self._add_arguments("}")
            self._state = self._content if tag[0] == _CLOSE else self._after
            return tag.end()
        if tag[0] in _OPENINGS:
            self._add_arguments("}")
            self._state = self._content
            return tag.start()
        name = tag[1].strip()
        separator = ", " if self._num_parameters else ""
        self._num_parameters += 1
        self._given.add(name)
        self._value = ValueWriter(self._schema.type_of(name))
        self._add_arguments(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")
        self._begins_line = True
        self._state = self._value_start
        return tag.end()

    def _value_start(self, text: str, start: int) -> int | None:
        """Skip the one line break before a value that belongs to the format."""
        if start == len(text):
            return self._wait(start)
        self._state = self._in_value
        self._is_on_lines = text[start] == "\n"
        return start + self._is_on_lines

    def _in_value(self, text: str, start: int) -> int | None:
        position = start
        while mark := _MARK.search(text, position):
            is_end = self._is_end(text, mark, start)
            if is_end is None or is_end:
                self._add_value(text[start : mark.start()])
                return self._wait(mark.start()) if is_end is None else self._leave_value(mark)
            position = mark.end()
        ready = self._ready(text, position, _MARKS)
        if not self._value.is_begun_text:
            ready = partial_tag(text, position, _MARKS)
        self._add_value(text[start:ready])
        return self._wait(ready)

    def _is_end(self, text: str, mark: re.Match[str], start: int) -> bool | None:
        """True if a tag ends the value from `start`; None if that is not certain yet."""
        tag, at = mark[0], mark.start()
        is_line = self._begins_line if at == start else text[at - 1] == "\n"
        if tag == _PARAMETER:
            if self._is_on_lines and not is_line:
                return False
            name = _ARGUMENT.match(text, mark.end())
            if name:
                argument = name[1].strip()
                return self._schema.declares(argument) and argument not in self._given
            return self._is_never(_BEGUN_ARGUMENT, text, mark.end())
        if tag == _END_OF_PARAMETER:
            return self._follows(text, mark.end(), _TAGS)
        if tag in _ENDS:
            return is_line or not self._opening or self._follows(text, mark.end(), _OPENINGS)
        if tag == _FUNCTION and not is_line:
            return False
        begin = at if tag == _FUNCTION else mark.end()
        return bool(_HEAD.match(text, begin)) or self._is_never(_BEGUN_HEAD, text, begin)

    def _leave_value(self, mark: re.Match[str]) -> int:
        if mark[0] in _OPENINGS and self._holds_nested:
            self._nested, self._depth = [], 0
            self._state = self._in_nested
            return mark.start()
        self._end_value()
        return mark.end() if mark[0] == _END_OF_PARAMETER else mark.start()

    def _in_nested(self, text: str, start: int) -> int | None:
        """A call within a value: part of it if the value's end follows, else another call."""
        position = start
        while mark := _NESTED.search(text, position):
            if mark[0] == _END_OF_PARAMETER and self._depth == 0:
                is_end = self._follows(text, mark.end(), _TAGS)
                if is_end is None:
                    self._nested.append(text[start : mark.start()])
                    return self._wait(mark.start())
                if is_end:
                    self._nested.append(text[start : mark.start()])
                    self._add_value("".join(self._nested))
                    self._end_value()
                    return mark.end()
            elif mark[0] != _END_OF_PARAMETER:
                self._depth = max(0, self._depth + (1 if mark[0] == _FUNCTION else -1))
            position = mark.end()
        ready = self._ready(text, position, _MARKS)
        self._nested.append(text[start:ready])
        return self._wait(ready)

    def _restart(self, nested: str) -> None:
        """End a call at another one that began within its last value; later ones do the same."""
        self._holds_nested = False
        self._end_value()
        self._run(nested)

    def _add_value(self, text: str) -> None:
        if text:
            self._begins_line = text.endswith("\n")
            self._add_arguments(self._value.add(text))

    def _end_value(self) -> None:
        self._add_arguments(self._value.end())
        self._state = self._between

    def _after(self, text: str, start: int) -> int | None:
        """After a function: the closing tag, which a model may forget."""
        is_closed = self._follows(text, start, (_CLOSE,))
        if is_closed is None:
            return self._wait(start)
        self._state = self._content
        close = text.find(_CLOSE, start, start + _MOST_SPACES + len(_CLOSE))
        return close + len(_CLOSE) if is_closed and close >= 0 else start

    def _follows(self, text: str, start: int, tags: tuple[str, ...]) -> bool | None:
        """True if white space and one of the tags follow; None if they may still come.

        At the end of a truncated answer, part of a tag counts.
        """
        whole, begun = _FOLLOWING[tags]
        if whole.match(text, start):
            return True
        if not begun.fullmatch(text, start):
            return False
        return self._is_last or None

    def _is_never(self, begun: re.Pattern[str], text: str, start: int) -> bool | None:
        """None if missing text may still come; False otherwise."""
        return None if not self._is_last and begun.fullmatch(text, start) else False

    def _ready(self, text: str, start: int, tags: tuple[str, ...]) -> int:
        """The position up to which no incomplete tag may begin."""
        return len(text) if self._is_last else partial_tag(text, start, tags)


def _unfinished_tag(text: str, start: int) -> int:
    """The position of a tag that may be incomplete; tags with a name are longer than others."""
    at = text.rfind("<", max(start, len(text) - _MOST_NAME_CHARS - len(_PARAMETER)))
    return at if at >= 0 else len(text)
