"""Where an answer thinks, token by token: the one account of it that everything else reads.

Grammars begin where it says that thinking is over, budgets count what it calls thinking, and
parsers split an answer there. Only tokens count: tags that are spelled in letters are text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.structured_outputs import ThinkingStage

NO_THINKING = "this model has no tokens <think> and </think>; leave it out"

_OPEN, _CLOSE, _CALL = "<think>", "</think>", "<tool_call>"
_ENDING = "\n</think>\n\n"  # as chat templates write it
_MOST_BLANKS = 3


def _is_never_blank(token_id: int) -> bool:
    del token_id
    return False


@dataclass(frozen=True)
class ThinkingTokens:
    """Token ids.

    Attributes:
        open: of `<think>`.
        close: of `</think>`.
        ending: of all that ends thinking, line breaks included.
        call: of `<tool_call>`; None if that is no token.
        is_blank: whether a token is white space.
    """

    open: int
    close: int
    ending: tuple[int, ...]
    call: int | None = None
    is_blank: Callable[[int], bool] = field(default=_is_never_blank, compare=False, repr=False)


def thinking_tokens(tokenizer: Tokenizer, vocab_size: int) -> ThinkingTokens | None:
    """The tokens; None unless `<think>` and `</think>` are a token each that the model has."""
    texts = (_OPEN, _CLOSE, _ENDING, _CALL)
    opening, closing, ending, call = tokenizer.encode_following(texts)
    if len(opening) != 1 or len(closing) != 1:
        return None
    if closing[0] not in ending:
        ending = closing
    if max(opening + ending) >= vocab_size:
        return None
    return ThinkingTokens(
        opening[0],
        closing[0],
        tuple(ending),
        call=call[0] if len(call) == 1 else None,
        is_blank=lambda token_id: tokenizer.token_text(token_id).isspace(),
    )


class Thinking:
    """Follows one answer through its thinking.

    Thinking is what an answer begins with, after three tokens of white space at most, or it is
    nowhere: a later `<think>` is a part of the answer. Where the prompt has opened it, the answer
    may repeat the tag, and where a call has ended it, close it behind the call.

    Args:
        calls: tool calls are read: the tag of one ends thinking that is open.
    """

    def __init__(
        self, tokens: ThinkingTokens, stage: ThinkingStage, *, calls: bool = False
    ) -> None:
        self.stage: ThinkingStage = stage
        self._tokens = tokens
        self._call = tokens.call if calls else None
        self._blanks_left = _MOST_BLANKS
        self._is_unclosed = False

    def take(self, token_id: int) -> bool:
        """Take in the next token; returns whether it is a tag of the thinking, and no text."""
        tokens, is_early = self._tokens, self._blanks_left >= 0
        if is_early:
            self._blanks_left -= 1 if tokens.is_blank(token_id) else _MOST_BLANKS + 1
        if self.stage == "over":
            is_close = self._is_unclosed and token_id == tokens.close
            self._is_unclosed = self._is_unclosed and not is_close
            return is_close
        if token_id == tokens.open and is_early:
            self.stage = "open"
            return True
        if self.stage == "possible":
            self.stage = "possible" if self._blanks_left >= 0 else "over"
        elif token_id in (tokens.close, self._call):
            self.stage, self._is_unclosed = "over", token_id != tokens.close
            return not self._is_unclosed
        return False


def thinking_stage(
    prompt: np.ndarray, tokens: ThinkingTokens, eos_token_ids: Sequence[int]
) -> ThinkingStage:
    """Where a prompt ends.

    Args:
        eos_token_ids: tokens that end each turn of the prompt; what is before the last of them
            does not count.
    """
    turn_starts = np.flatnonzero(np.isin(prompt, eos_token_ids))
    turn = prompt[turn_starts[-1] + 1 :] if len(turn_starts) else prompt
    tags = turn[(turn == tokens.open) | (turn == tokens.close)]
    if not len(tags):
        return "possible"
    return "open" if int(tags[-1]) == tokens.open else "over"
