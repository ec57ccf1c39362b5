"""The rule that drafts tokens, and the tokens that it drafts from: values of a program."""

from dataclasses import dataclass
from typing import Any, NamedTuple

CORPUS = -1
"""In the place of a slot: the corpus."""


@dataclass(frozen=True)
class Drafter:
    """How a row's next tokens are guessed from tokens that were seen; static in a program.

    Attributes:
        num_tokens: k, most drafts of a row in a step.
        longest: most tokens of a sequence's end that are looked up.
        shortest: fewest tokens that must be found for a draft.
        as_long_as_match: whether a draft has at most as many tokens as were found.
    """

    num_tokens: int
    longest: int
    shortest: int
    as_long_as_match: bool = False


class DraftTextSizes(NamedTuple):
    """Sizes of the texts that drafts are made from, in tokens.

    Attributes:
        history: L, of each slot's sequence.
        corpus: C, of all texts beside them; 0 without.
    """

    history: int
    corpus: int = 0


class DraftState(NamedTuple):
    """What drafts are made from; lies on every device, like the newest tokens.

    Attributes:
        history: int32 ``[slots, L]``, the tokens of each slot's sequence by position; anything
            behind its end.
        lengths: int32 ``[slots]``, tokens of each sequence, the one to be fed next included.
        corpus: int32 ``[C]``, texts that any sequence may go on like: 1 + the ids of their tokens,
            and 0 between them and where there is none; None without.
    """

    history: Any
    lengths: Any
    corpus: Any = None
