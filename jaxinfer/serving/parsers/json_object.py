"""Finds a JSON object's end in a text that comes in parts, and the members of a whole object."""

import json
import re
from typing import Any, NamedTuple

import numpy as np

_MARK = re.compile(r'["\\\[\]{}]')
_QUOTE = ord('"')

_MOST_MEMBERS = 64
_OPENING = re.compile(r"[ \t\n\r]*+\{[ \t\n\r]*+")
_COLON = re.compile(r"[ \t\n\r]*+:[ \t\n\r]*+")
_AFTER = re.compile(r"[ \t\n\r]*+(?:,[ \t\n\r]*+|(\}[ \t\n\r]*+\Z))")
_read = json.JSONDecoder().raw_decode


class Member(NamedTuple):
    """A value of an object.

    Attributes:
        value: as Python has it.
        text: as it is written.
    """

    value: Any
    text: str


def object_members(text: str) -> dict[str, Member]:
    """The members of a JSON object, by name; the last one of each name.

    Raises:
        ValueError: the text is something else, or the object is empty or has more than 64 members.
        RecursionError: brackets are nested too deeply.
    """
    members: dict[str, Member] = {}
    position = _match(_OPENING, text, 0).end()
    for _ in range(_MOST_MEMBERS):
        name, position = _read(text, position)
        if not isinstance(name, str):
            raise ValueError(f"no name at {position}")
        start = _match(_COLON, text, position).end()
        value, end = _read(text, start)
        members[name] = Member(value, text[start:end])
        after = _match(_AFTER, text, end)
        if after[1]:
            return members
        position = after.end()
    raise ValueError(f"more than {_MOST_MEMBERS} members")


def _match(pattern: re.Pattern[str], text: str, position: int) -> re.Match[str]:
    found = pattern.match(text, position)
    if found is None:
        raise ValueError(f"unexpected text at {position}")
    return found


class ObjectEnd:
    """Counts brackets outside strings until the one that closes the object, in passes of NumPy.

    Nothing else is checked: the text between the brackets need not be JSON.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False

    def find(self, text: str) -> int | None:
        """One past the closing bracket, if it is in `text`; the first text begins with "{".

        Args:
            text: the next part; it does not end within an escape, see `unescaped_length`.
        """
        if not _MARK.search(text):
            return None
        # The same length without escapes, so that every quote left begins or ends a string.
        plain = text.replace("\\\\", "__").replace('\\"', "__")
        chars = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
        outside = (np.cumsum(chars == _QUOTE, dtype=np.int32) + self._in_string) % 2 == 0
        folded = chars | 0x20  # "[" is "{" and "]" is "}" but for this bit
        closes = (folded == ord("}")) & outside
        steps = ((folded == ord("{")) & outside).astype(np.int8) - closes
        depths = self._depth + np.cumsum(steps, dtype=np.int32)
        ends = np.flatnonzero((depths <= 0) & closes)
        if len(ends):
            return int(ends[0]) + 1
        self._depth, self._in_string = int(depths[-1]), not outside[-1]
        return None


def unescaped_length(text: str, start: int, end: int) -> int:
    """The largest end, at most `end`, at which a part from `start` ends within no escape.

    The part must itself begin outside an escape.
    """
    part = text[start:end]
    return end - (len(part) - len(part.rstrip("\\"))) % 2
