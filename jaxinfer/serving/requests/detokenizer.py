"""Incremental detokenization: tokens to text, exact and in linear time, with stop strings."""

from collections.abc import Iterable, Sequence

from jaxinfer.model.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental text of one completion; for one that is read in parts, see `AnswerText`.

    The text does not depend on how the tokens are divided into calls, and after `finish` equals
    `tokenizer.decode` of all of them (cut at the stop string, if one was found), as it goes on from
    the preceding ones: the bytes of the tokens go through an incremental UTF-8 decoder, so a
    character split over tokens appears when its last byte does.

    Args:
        tokenizer: gives the bytes of a token.
        preceding: the prompt's tokens.
        stop: strings that end the text.
        include_stop: whether a stop string or stop token stays in the text.
        skip_special_tokens: whether special tokens leave no text.
        min_tokens: number of tokens before which stop strings are ignored.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        preceding: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ):
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._min_tokens = min_tokens
        self._decoder = tokenizer.text_decoder(preceding, skip_special_tokens=skip_special_tokens)
        self._stops = StopStrings(stop)
        self._pieces: list[str] = []
        self._num_taken = 0
        self._held = ""  # complete characters that may begin a stop string
        self._num_tokens = 0
        self.stop_string: str | None = None
        """The stop string that was found; tokens after it add no text."""

    def append(self, token_ids: Iterable[int]) -> int | None:
        """Add tokens to the text.

        Returns:
            The number of `token_ids` up to and including the one that completed a stop string
            (later ones are ignored), or None.
        """
        for count, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            if self._skip_special_tokens and self._tokenizer.is_special(token_id):
                continue
            self._extend(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
            if self.stop_string is not None:
                return count
        return None

    def append_stop_token(self, token_id: int) -> None:
        """Add the stop token that ended the completion; it has text only with `include_stop`."""
        if self._include_stop:
            self.append([token_id])

    def finish(self) -> None:
        """End the text: release text held back; an incomplete character becomes U+FFFD."""
        if self.stop_string is None:
            self._release(self._held + self._decoder.decode(b"", final=True), 0)

    def take(self) -> str:
        """The text since the last call, without an end that may become a stop string."""
        new = "".join(self._pieces[self._num_taken :])
        self._num_taken = len(self._pieces)
        return new

    @property
    def text(self) -> str:
        """All text so far, without an end that may become a stop string."""
        return "".join(self._pieces)

    def _extend(self, text: str) -> None:
        if not self._stops:
            self._release(text, 0)
            return
        found = self._stops.find(text, counts=self._num_tokens >= self._min_tokens)
        if found is None:
            self._release(self._held + text, self._stops.num_matched)
            return
        end, self.stop_string = found
        self._release(self._held + text[:end], 0 if self._include_stop else len(self.stop_string))
        self._held = ""

    def _release(self, text: str, num_held: int) -> None:
        cut = len(text) - num_held
        if cut:
            self._pieces.append(text[:cut])
        self._held = text[cut:]


class StopStrings:
    """Finds the first of several strings in a stream of characters."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._matchers = [_StopMatcher(text) for text in stop]

    def find(self, text: str, *, counts: bool) -> tuple[int, str] | None:
        """Take in the next characters.

        Args:
            text: the characters; those behind a string that is found are not taken in.
            counts: whether a string may be found; one that may not is passed over.

        Returns:
            One past the end of the string that ends first, the longest of these, and the string.
        """
        for i, char in enumerate(text):
            # Every matcher sees every character.
            complete = [matcher.stop for matcher in self._matchers if matcher.feed(char)]
            if complete and counts:
                return i + 1, max(complete, key=len)
        return None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._matchers)

    @property
    def num_matched(self) -> int:
        """How many of the last characters may be the beginning of a string."""
        return max((matcher.matched for matcher in self._matchers), default=0)

    def restart(self) -> None:
        """Forget all characters: none of them begins a string."""
        for matcher in self._matchers:
            matcher.matched = 0


class _StopMatcher:
    """Finds one string in a stream of characters, a constant amount of work for each.

    Knuth, Morris and Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6 (1977).
    """

    def __init__(self, stop: str):
        self.stop = stop
        self.matched = 0
        """Length of the longest proper prefix of the stop string at the end of the stream."""
        self._fallback = [0]
        for char in stop[1:]:
            self._fallback.append(self._advance(self._fallback[-1], char))

    def feed(self, char: str) -> bool:
        """Take one character; returns whether it completes the string."""
        self.matched = self._advance(self.matched, char)
        if self.matched < len(self.stop):
            return False
        self.matched = self._fallback[-1]
        return True

    def _advance(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._fallback[length - 1]
        return length + 1 if self.stop[length] == char else 0
