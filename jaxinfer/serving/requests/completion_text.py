"""The text of a completion's tokens: whole, or read in parts; and the stop strings in it."""

import functools
from collections.abc import Sequence

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import FinishReason, Piece
from jaxinfer.serving.parsers.answer import content_of
from jaxinfer.serving.requests.answer_text import AnswerText
from jaxinfer.serving.requests.detokenizer import Detokenizer
from jaxinfer.serving.requests.request import Request


class CompletionText:
    """Follows the tokens of a completion."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params, answer = request.params, request.new.answer
        make = Detokenizer if answer is None else functools.partial(AnswerText, format=answer)
        self._text: Detokenizer | AnswerText = make(
            tokenizer,
            preceding=request.new.prompt.token_ids,
            stop=tuple(params.stop or ()),
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
        )
        self._num_read = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it, or None."""
        return self._text.stop_string

    @property
    def num_reasoning_tokens(self) -> int:
        """How many tokens of an answer that is read in parts are reasoning."""
        return self._text.num_reasoning_tokens if isinstance(self._text, AnswerText) else 0

    def read(self, token_ids: Sequence[int], finish_reason: FinishReason | None) -> int | None:
        """Bring the text up to date with all tokens so far, which end it if there is a reason.

        Returns:
            How many of the tokens remain if a stop string ends the completion after them; else
            None.
        """
        new = token_ids[self._num_read :]
        ends_by_token = bool(new) and finish_reason == "stop"
        stopped_after = self._text.append(new[:-1] if ends_by_token else new)
        kept = None
        if stopped_after is not None:
            kept = self._num_read + stopped_after
        elif ends_by_token:
            self._text.append_stop_token(new[-1])
        self._num_read = len(token_ids) if kept is None else kept
        if finish_reason is not None or kept is not None:
            self._text.finish()
        return kept

    def take(self, *, delta: bool) -> tuple[str, Sequence[Piece] | None]:
        """The text, all or only what is new, and its pieces if it is read in parts."""
        if isinstance(self._text, Detokenizer):
            return self._text.take() if delta else self._text.text, None
        pieces = self._text.take() if delta else self._text.pieces
        return content_of(pieces), pieces
