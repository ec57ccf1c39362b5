"""Text of an answer that is read as reasoning, content and calls, with stops in its content."""

from collections.abc import Iterable, Sequence

from jaxinfer.model.text.thinking_tokens import Thinking, thinking_tokens
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CallArguments, Content, Piece
from jaxinfer.serving.parsers.answer import AnswerParser
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.parsers.held_back import LetterTags, shown
from jaxinfer.serving.parsers.reasoning import ReasoningState
from jaxinfer.serving.requests.detokenizer import StopStrings

_CALL_TAGS = ("<tool_call>", "</tool_call>")


class AnswerText:
    """What a `Detokenizer` is for plain text, for an answer in an `AnswerFormat`.

    Where the model has tokens for the tags around its reasoning and calls, these alone begin and
    end them, as they do for its grammar and its budget; letters that spell a tag are text. Such
    tokens are read also where the tokenizer has them as special ones.

    Stop strings are looked for in the content alone: not in reasoning, not in calls, and not over
    these. They end the answer at the token that completes them, before it is known whether white
    space there belongs to a call.

    Args as of `Detokenizer`, but for:
        format: how the answer is read.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        format: AnswerFormat,
        *,
        preceding: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._min_tokens = min_tokens
        reasoning = None if format.stage == "over" else format.reasoning
        tokens = None
        if reasoning is not None and format.tags_are_tokens:
            tokens = thinking_tokens(tokenizer, tokenizer.vocab_size)
        self._thinking = Thinking(tokens, format.stage, calls=format.has_calls) if tokens else None
        known = {tag: tokenizer.token_to_id(tag) for tag in _CALL_TAGS if format.has_calls}
        self._call_tags = {token_id: tag for tag, token_id in known.items() if token_id is not None}
        self._letters = LetterTags(tuple(self._call_tags.values()))
        self._parser = AnswerParser(
            reasoning=reasoning,
            tools=format.tools,
            is_open=format.stage == "open",
            schemas=format.schemas,
            parallel=format.parallel,
        )
        self._decoder = tokenizer.text_decoder(preceding, skip_special_tokens=skip_special_tokens)
        self._unread: list[bytes] = []  # of tokens between tags
        self._stops = StopStrings(stop)
        # Stop strings want the token that completes them; in letters, tags are parsers' to find.
        self._reads_each_token = bool(stop) or (reasoning and self._thinking is None)
        self._drops_spaces = False  # at the beginning of content, behind something else
        self._unsearched = ""  # content, unless it becomes reasoning
        self._held = ""  # content that may begin a stop string
        self._pieces: list[Piece] = []
        self._num_taken = 0
        self._num_tokens = 0
        self.num_reasoning_tokens = 0
        """Tokens of reasoning so far, the tags around it left out."""
        self.stop_string: str | None = None
        """The stop string that was found; tokens after it add no text."""

    def append(self, token_ids: Iterable[int]) -> int | None:
        """Add tokens; see `Detokenizer.append`."""
        for count, token_id in enumerate(token_ids, start=1):
            self._add(token_id)
            if self.stop_string is not None:
                return count
        self._read_text(self._state)
        return None

    def append_stop_token(self, token_id: int) -> None:
        """Add the stop token that ended the completion; it has text only with `include_stop`."""
        if self._include_stop:
            self.append([token_id])
        elif self._state == "open":
            self.num_reasoning_tokens += 1

    def finish(self) -> None:
        """End the answer: release what is held back."""
        if self.stop_string is None:
            self._read_text(self._state, final=True)
            self._release(self._parser.finish(), 0)

    def take(self) -> Sequence[Piece]:
        """The pieces since the last call."""
        new = self._pieces[self._num_taken :]
        self._num_taken = len(self._pieces)
        return new

    @property
    def pieces(self) -> Sequence[Piece]:
        """All pieces so far."""
        return list(self._pieces)

    @property
    def _state(self) -> ReasoningState:
        return self._thinking.stage if self._thinking else self._parser.reasoning_state

    def _add(self, token_id: int) -> None:
        self._num_tokens += 1
        before = self._state
        is_tag = self._thinking is not None and self._thinking.take(token_id)
        if before == "over":  # it closes what a call has ended; but not within a call
            is_tag = is_tag and self._parser.is_in_content
        if is_tag or token_id in self._call_tags:
            self._read_text(before, final=True)
            tag = "" if is_tag else self._call_tags[token_id]
            self._read(tag, tag, self._state)
        elif not (self._skip_special_tokens and self._tokenizer.is_special(token_id)):
            self._unread.append(self._tokenizer.token_bytes(token_id))
            if self._reads_each_token:
                self._read_text(self._state)
        elif before != self._state:  # a token without text, which says what is before it
            self._read_text(self._state)
        self.num_reasoning_tokens += before == self._state == "open" and not is_tag

    def _read_text(self, state: ReasoningState, *, final: bool = False) -> None:
        """Read the text of tokens between tags.

        Args:
            state: before or behind all of it.
            final: neither a character nor a tag in letters goes on behind it.
        """
        text = self._decoder.decode(b"".join(self._unread), final)
        self._unread.clear()
        parsed = self._letters.hide(text) if state == "over" else text
        if final:
            parsed += self._letters.take()
        self._read(text, parsed, state)

    def _read(self, text: str, parsed: str, state: ReasoningState) -> None:
        """Take in a text, of which parsers get what is not held, and what was."""
        if not self._stops:
            self._release(self._parser.feed(parsed, state if self._thinking else None), 0)
            return
        parser = self._parser
        may_be_content = parser.reasoning_state == "possible" or parser.is_in_content
        pieces = parser.feed(parsed, state if self._thinking else None)
        if parser.reasoning_state == "possible":
            self._unsearched += text
        elif not parser.is_in_content:
            self._unsearched, self._drops_spaces = "", True
            self._stops.restart()
            self._release(pieces, 0)
        else:
            searched = self._unsearched + text if may_be_content else ""
            self._unsearched = ""
            self._search(searched, pieces)

    def _search(self, text: str, pieces: Sequence[Piece]) -> None:
        """Look for stop strings in the text of content, of which these pieces are certain."""
        if self._drops_spaces:
            text = text.lstrip()
            self._drops_spaces = not text
        found = self._stops.find(text, counts=self._num_tokens >= self._min_tokens)
        if found is None:
            self._release(pieces, self._stops.num_matched)
            return
        end, self.stop_string = found
        num_cut = len(text) - end + (0 if self._include_stop else len(self.stop_string))
        rest = self._parser.feed(self._letters.take(), "over") + self._parser.finish()
        self._release([*pieces, *rest], num_cut)
        self._held = ""

    def _release(self, pieces: Sequence[Piece], num_held: int) -> None:
        """Pass on pieces, but for this number of characters of content at their end."""
        for piece in pieces:
            if isinstance(piece, Content):
                self._held += shown(piece.text)
                continue
            self._release_content(len(self._held))
            if isinstance(piece, CallArguments):
                piece = CallArguments(piece.index, shown(piece.text))
            self._pieces.append(piece)
        self._release_content(len(self._held) - num_held)

    def _release_content(self, count: int) -> None:
        if count > 0:
            self._pieces.append(Content(self._held[:count]))
            self._held = self._held[count:]
