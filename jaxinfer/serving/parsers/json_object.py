"""Finds a JSON object's end in a text that comes in parts, and the members of a whole object.

Common mistakes of models in JSON are repaired.
"""

import json
import re
from typing import Any, NamedTuple

import numpy as np

_MARK = re.compile(r'["\\\[\]{}]')
_QUOTE, _COMMA = ord('"'), ord(",")
_SPACES = " \t\n\r"
_MOST_SPACES = 64
_TO_MEND = re.compile(r",[ \t\n\r]{0,64}[\]}]|[\x00-\x1f]")
_FIRST_PRINTED = 0x20
_ESCAPES = np.array(
    [
        [*map(ord, json.dumps(chr(code))[1:-1].ljust(len("\\u0000"), "\0"))]
        for code in range(_FIRST_PRINTED)
    ],
    np.uint32,
)
"""JSON's escapes of control characters, padded with zeros, ``[32, 6]``."""

_MOST_MEMBERS = 64
_OPENING = re.compile(r"[ \t\n\r]*+\{[ \t\n\r]*+")
_COLON = re.compile(r"[ \t\n\r]*+:[ \t\n\r]*+")
_AFTER = re.compile(r"[ \t\n\r]*+(?:,[ \t\n\r]*+|(\}))")
_read = json.JSONDecoder().raw_decode


class Member(NamedTuple):
    """A value of an object, as Python has it and as written."""

    value: Any
    text: str


def object_members(text: str, start: int = 0) -> tuple[dict[str, Member], int]:
    """The members of a JSON object, by name (the last of each), and its end.

    Raises:
        ValueError: it is not an object, or is empty or has more than 64 members.
        RecursionError: brackets are nested too deeply.
    """
    members: dict[str, Member] = {}
    position = _match(_OPENING, text, start).end()
    for _ in range(_MOST_MEMBERS):
        name, position = _read(text, position)
        if not isinstance(name, str):
            raise ValueError(f"no name at {position}")
        begin = _match(_COLON, text, position).end()
        value, end = _read(text, begin)
        members[name] = Member(value, text[begin:end])
        after = _match(_AFTER, text, end)
        if after[1]:
            return members, after.end()
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

    Args:
        depth: brackets that are open already.
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False

    def find(self, text: str, tag: str) -> tuple[int, bool] | None:
        """Find the object's end in `text`; the first text begins with "{" or within the object.

        Args:
            text: the next part; it does not end within an escape, see `unescaped_length`.
            tag: that ends the object, too, outside strings.

        Returns:
            The position, and True if it is after the closing bracket, False if at a tag; None if
            there is no end yet.
        """
        at = text.find(tag)
        if at < 0 and not _MARK.search(text):
            return None
        chars, outside = _outside(text, self._in_string)
        while at >= 0 and not outside[at]:
            at = text.find(tag, at + 1)
        folded = chars | 0x20  # "[" is "{" and "]" is "}" but for this bit
        closes = (folded == ord("}")) & outside
        steps = ((folded == ord("{")) & outside).astype(np.int8) - closes
        depths = self._depth + np.cumsum(steps, dtype=np.int32)
        ends = np.flatnonzero((depths <= 0) & closes)
        if len(ends) and not 0 <= at < ends[0]:
            return int(ends[0]) + 1, True
        if at >= 0:
            return at, False
        self._depth, self._in_string = int(depths[-1]), not outside[-1]
        return None

    @property
    def in_string(self) -> bool:
        """True if the text searched so far ends within a string."""
        return self._in_string


def mended(text: str, *, in_string: bool = False) -> str:
    """Repair JSON: drop commas before a closing bracket, escape line breaks within strings.

    Args:
        text: it does not end within an escape.
        in_string: it begins within a string.
    """
    if not _TO_MEND.search(text):
        return text
    chars, outside = _outside(text, in_string)
    given = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kept = ~_closes_no_value(chars, outside)
    written = _escaped(given[kept], ((chars < _FIRST_PRINTED) & ~outside)[kept])
    return written.tobytes().decode("utf-32-le", "surrogatepass")


def _escaped(chars: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Characters, uint32 ``[n]``, with the chosen ones replaced by JSON's escapes."""
    if not chosen.any():
        return chars
    escapes = _ESCAPES[chars[chosen]]
    lengths = np.ones(len(chars), np.int64)
    lengths[chosen] = (escapes > 0).sum(axis=1)
    written = np.repeat(chars, lengths)
    starts = (np.cumsum(lengths) - lengths)[chosen]
    for i in range(escapes.shape[1]):
        is_there = escapes[:, i] > 0
        written[starts[is_there] + i] = escapes[is_there, i]
    return written


def _closes_no_value(chars: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """A mask of the commas before a closing bracket."""
    commas = np.flatnonzero((chars == _COMMA) & outside)
    others = np.flatnonzero(~np.isin(chars, [ord(each) for each in _SPACES]))
    following = np.append(others, len(chars))[np.searchsorted(others, commas, side="right")]
    folded = np.append(chars | 0x20, 0)[following]
    is_near = following - commas <= _MOST_SPACES + 1
    found = np.zeros(len(chars), bool)
    found[commas[(folded == ord("}")) & is_near]] = True
    return found


def certain_length(text: str, start: int, end: int) -> int:
    """The largest safe end, at most `end`, for a part from `start`.

    It cuts no escape, and the part does not end in a comma that may have to be dropped.

    The part must itself begin outside an escape.
    """
    part = text[start:end]
    core = part.rstrip(_SPACES)
    if core.endswith(",") and len(part) - len(core) <= _MOST_SPACES:
        return start + len(core) - 1
    return end - (len(part) - len(part.rstrip("\\"))) % 2


def _outside(text: str, in_string: bool) -> tuple[np.ndarray, np.ndarray]:
    """The characters, uint32 ``[n]``, escapes replaced; and a mask of those outside strings."""
    # The same length without escapes, so that every quote left begins or ends a string.
    plain = text.replace("\\\\", "__").replace('\\"', "__")
    chars = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
    return chars, (np.cumsum(chars == _QUOTE, dtype=np.int32) + in_string) % 2 == 0
