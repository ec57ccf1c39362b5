"""Splits a streamed answer into thinking and speech."""

from collections.abc import Iterator

OPEN, CLOSE = "<think>", "</think>"


class ThinkingSplitter:
    """Follows `<think>` ... `</think>` through a stream whose chunks may cut the tags anywhere.

    Args:
        inside: the prompt has opened the tag already.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._inside = inside
        self._held = ""

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        """Yield (is thinking, text) for all text that is certain by now; tags are left out."""
        self._held += text
        while True:
            tag = CLOSE if self._inside else OPEN
            before, found, after = self._held.partition(tag)
            if not found:
                break
            if before:
                yield self._inside, before
            self._inside = not self._inside
            self._held = after
        ready = len(self._held) - _overlap(self._held, tag)
        if ready:
            yield self._inside, self._held[:ready]
            self._held = self._held[ready:]

    def finish(self) -> Iterator[tuple[bool, str]]:
        """Yield the text held back as the possible beginning of a tag."""
        if self._held:
            yield self._inside, self._held
            self._held = ""


def spoken(text: str, *, inside: bool, is_whole: bool) -> str:
    """An answer without its thinking.

    Args:
        text: the answer so far, thinking and tags included.
        inside: the prompt has opened the tag already.
        is_whole: whether the answer is complete; otherwise what may be the beginning of a tag is
            left out.
    """
    splitter = ThinkingSplitter(inside=inside)
    pieces = [*splitter.feed(text), *(splitter.finish() if is_whole else ())]
    return "".join(piece for thinking, piece in pieces if not thinking).strip()


def is_thinking(text: str, *, inside: bool) -> bool:
    """True if an answer ends in the middle of thinking; arguments as for `spoken`."""
    last = max(text.rfind(OPEN), 0 if inside else -1)
    return last > text.rfind(CLOSE)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
