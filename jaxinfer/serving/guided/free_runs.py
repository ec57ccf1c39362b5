"""When an answer with a grammar is drawn freely: its tokens are checked instead of masked.

A mask needs every earlier token on the host, which costs a launch a token, where rows without a
grammar get several tokens a launch. But a model that was asked for JSON mostly writes JSON. So
tokens are drawn as if there were no grammar, and checked when they are read. Where one is refused,
what follows it is dropped, and the token is drawn anew, under a mask and by other random bits.

That is rejection sampling: with p(t) for the model's choice and Z for the probability of all that
the grammar allows, a token t that is allowed comes out with p(t) + (1 - Z) p(t) / Z = p(t) / Z, as
under the mask. There are two differences. With `top_k`, `top_p` or `min_p` the first draw is from
the likeliest of all tokens, the second from the likeliest of the allowed. And text that a grammar
forces may come as other tokens than the tokenizer's, which are all that its masks allow.
"""

import sys

import numpy as np

from jaxinfer.sampling_params import SamplingParams

FEWEST_MASKED = 1
"""Tokens that are drawn under masks before the first that is drawn freely."""

FEWEST_FORCED = 2
"""Forced tokens that are appended unsampled; one costs nothing: its step is launched anyway."""

_NUM_PROBED = 1  # free tokens that are checked alone, before several are drawn at once
_LONG = 4  # tokens that make up for a refusal, which costs a launch or two
_VERY_LONG = 32  # tokens after which one refusal is no reason to expect another
_MOST_MASKED = 8  # tokens under masks after shorter runs
_NEARLY_ALL = 0.9


def may_run_freely(params: SamplingParams) -> bool:
    """Whether a request's tokens can be drawn before the ones before them are checked.

    Not where the device would count the ones that are refused, or where its slot holds other edits
    of logits than the grammar's mask; nor where log-probabilities are those under the mask.
    """
    return not (
        params.has_penalties
        or params.logprobs is not None
        or params.logit_bias
        or params.allowed_token_ids is not None
        or params.bad_words
        or (params.thinking_token_budget is not None and not _thinks_first(params))
    )


def _thinks_first(params: SamplingParams) -> bool:
    given = params.structured_outputs
    return given is not None and given.after_thinking


class FreeRuns:
    """Which tokens of one answer are drawn freely.

    It depends on the answer's own tokens alone: batch mates, preemption and faults change nothing.
    After a run that was refused early, some tokens are drawn under masks, twice as many each time;
    otherwise one is. The first token of a run is checked alone, unless the run before was very
    long, or was not refused early and the mask leaves nearly all tokens, as within a string. Tokens
    are counted from the answer's first, 0.

    Args:
        enabled: whether any token may be.

    Attributes:
        first: the first token of the run; none before it that is yet to come is free.
        together: the first that may be drawn with others before these are checked.
        redrawn: the last token that was refused; None before.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.first = self.together = sys.maxsize
        self.redrawn: int | None = None
        self._num_masked = FEWEST_MASKED
        self._num_left = FEWEST_MASKED if enabled else sys.maxsize
        self._last_masked = -1
        self._was_very_long = False

    @property
    def is_enabled(self) -> bool:
        """Whether a run is going on, or will begin after some masks."""
        return self._num_left != sys.maxsize

    @property
    def may_begin(self) -> bool:
        """Whether the next token is the last under a mask, and the one behind it may be sure."""
        return self._num_left == 1 and self._num_masked == FEWEST_MASKED

    def begins_behind(self, allowed: np.ndarray) -> bool:
        """Whether the next token's mask, int32 words, is the last, and none is checked alone."""
        return self.may_begin and self._is_sure(allowed)

    def note_refusal(self, number: int) -> None:
        """A token that was drawn freely is not allowed; it and some others will be masked."""
        length = number - self.first
        self._was_very_long = length >= _VERY_LONG
        twice = min(2 * self._num_masked, _MOST_MASKED)
        self._num_masked = FEWEST_MASKED if length >= _LONG else twice
        self._num_left = self._num_masked
        self.redrawn = number
        self.first = self.together = sys.maxsize

    def note_mask(self, number: int, allowed: np.ndarray) -> None:
        """A token is drawn under a mask, int32 words; a step that raised is told of again."""
        if number <= self._last_masked or self._num_left == sys.maxsize:
            return
        self._last_masked = number
        self._num_left -= 1
        if self._num_left == 0:
            self.first = number + 1
            self.together = self.first + (0 if self._is_sure(allowed) else _NUM_PROBED)

    def _is_sure(self, allowed: np.ndarray) -> bool:
        """Whether the run behind this mask begins without a token alone."""
        if self._num_masked > FEWEST_MASKED:
            return False
        return self._was_very_long or _share(allowed) > _NEARLY_ALL


def _share(allowed: np.ndarray) -> float:
    """The share of bits that are set in int32 words."""
    return int(np.bitwise_count(allowed.view(np.uint32)).sum()) / (32 * len(allowed))
