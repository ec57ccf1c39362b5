"""Bad words of several tokens: the last is banned where the others were generated just before."""

from collections.abc import Sequence

from jaxinfer.serving.constraints.constraint import NextToken, TokenEdits


class BadWords:
    """Phrases, as token ids, that an answer must not contain; a slot bans those of one token."""

    starts_at = 0

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        self._phrases = [phrase for phrase in phrases if len(phrase) > 1]

    def after(self, token_ids: Sequence[int]) -> NextToken:
        """Ban the tokens that would complete a phrase."""
        banned = frozenset(
            last for *first, last in self._phrases if list(token_ids[-len(first) :]) == first
        )
        return NextToken(TokenEdits(banned))
