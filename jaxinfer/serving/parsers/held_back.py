"""Holds back the end of a stream that may be white space before a tag, or the tag's beginning."""


class HeldBack:
    """Passes text on, but holds white space at its end until something else follows.

    Args:
        chars: the characters that count as white space, as for `str.strip`; None for all of it.
        drops_start: leave out the white space that the text begins with.
    """

    def __init__(self, chars: str | None = None, *, drops_start: bool = False) -> None:
        self._chars = chars
        self._at_start = drops_start
        self._held: list[str] = []

    def add(self, text: str) -> str:
        """The text without white space at its end, which is held until more text comes."""
        if self._at_start:
            text = text.lstrip(self._chars)
        core = text.rstrip(self._chars)
        if not core:
            if text:
                self._held.append(text)
            return ""
        self._at_start = False
        ready = self.take() + core
        if len(core) < len(text):
            self._held.append(text[len(core) :])
        return ready

    def take(self) -> str:
        """Return the held text, and hold nothing."""
        held = "".join(self._held)
        self._held.clear()
        return held


def partial_tag(text: str, start: int, tags: tuple[str, ...]) -> int:
    """The position of a tag that may be incomplete; the text's length if there is none.

    Args:
        text: has no complete tag from `start` on.
        start: the first position that counts.
        tags: each begins with "<", which is nowhere else in it.
    """
    longest = max(map(len, tags))
    at = text.rfind("<", max(start, len(text) - longest + 1))
    if at >= 0 and any(tag.startswith(text[at:]) for tag in tags):
        return at
    return len(text)


_MARK = "\ud800"
"""Half of a surrogate pair, which no decoded text has."""


class LetterTags:
    """Hides tags that are written out in characters from parsers, which look for them in text.

    Args:
        tags: each begins with "<", which is nowhere else in it.
    """

    def __init__(self, tags: tuple[str, ...]) -> None:
        self._tags = tags
        self._held = ""

    def hide(self, text: str) -> str:
        """The text with its tags hidden; an end that may become one is held until more comes."""
        if not self._tags:
            return text
        text = self._held + text
        for tag in self._tags:
            text = text.replace(tag, _MARK + tag[1:])
        ready = partial_tag(text, 0, self._tags)
        self._held = text[ready:]
        return text[:ready]

    def take(self) -> str:
        """Return the held text, and hold nothing."""
        held, self._held = self._held, ""
        return held


def shown(text: str) -> str:
    """A parser's text with its hidden tags restored."""
    return text.replace(_MARK, "<")
