"""Finds where a JSON object ends in a text that comes in parts, with a few passes of NumPy."""

import re

import numpy as np

_MARK = re.compile(r'["\\\[\]{}]')
_QUOTE = ord('"')


class ObjectEnd:
    """Counts brackets outside strings until the one that closes the object.

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
