"""Records the log-probabilities of a completion step by step."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from jaxinfer.logprobs import ChosenLogprobs, Logprob, LogprobsAtPosition, Support
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.requests.result import TokenScores


class Measured(NamedTuple):
    """What was measured of a completion's tokens, an entry for each; None for what was not."""

    entropies: list[float] | None = None
    supports: list[Support] | None = None

    def since(self, start: int) -> "Measured":
        """The same from token `start` on."""
        entropies, supports = self
        return Measured(
            None if entropies is None else entropies[start:],
            None if supports is None else supports[start:],
        )

    def joined(self, behind: "Measured") -> "Measured":
        """The same of tokens and of others behind them, of which the same was measured."""
        return Measured(
            None if self.entropies is None else self.entropies + (behind.entropies or []),
            None if self.supports is None else self.supports + (behind.supports or []),
        )


NOT_MEASURED = Measured()
"""Of requests that ask for log-probabilities at most."""


class Recording(Protocol):
    """The recorded log-probabilities of a completion's tokens, and what was measured of them."""

    def extend(self, scores: TokenScores, row: int, token_ids: Sequence[int]) -> None:
        """Add the log-probabilities of a step's row.

        Raises:
            RuntimeError: the step did not compute the requested log-probabilities.
        """
        ...

    def since(self, start: int, token_ids: Sequence[int]) -> Sequence[LogprobsAtPosition] | None:
        """The log-probabilities from token `start` on, in the caller's form; None if unknown."""
        ...

    @property
    def total(self) -> float | None:
        """The sum over the chosen tokens; None if unknown."""
        ...

    def measured(self, start: int) -> Measured:
        """What was measured from token `start` on."""
        ...

    def cut(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        ...

    def plain_values(self) -> list[float] | None:
        """What log-probabilities of the tokens to come may be appended to; None if it is more."""
        ...


def start_logprobs(
    count: int | None, tokenizer: Tokenizer | None, labels: Sequence[int] | None = None
) -> Recording | None:
    """A recording of the chosen and `count` likeliest tokens' values, and of labels'.

    None for no count and no labels.
    """
    if count is None and labels is None:
        return None
    return (
        _Likeliest(count or 0, tokenizer, labels or ()) if count or labels else _Chosen(tokenizer)
    )


class _Chosen:
    """Only the chosen tokens, as plain numbers: rollouts want one for every token."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._values: list[float] = []
        self._ranks: list[int | None] = []
        self._sum, self._num_summed = 0.0, 0
        self._text_of = None if tokenizer is None else tokenizer.token_text

    def extend(self, scores: TokenScores, row: int, token_ids: Sequence[int]) -> None:
        count = len(token_ids)
        self._values += _chosen(scores)[row, :count].tolist()
        self._ranks += (
            [None] * count
            if scores.ranks is None
            else [rank or None for rank in scores.ranks[row, :count].tolist()]
        )

    def since(self, start: int, token_ids: Sequence[int]) -> ChosenLogprobs:
        self._ranks += [None] * (len(self._values) - len(self._ranks))
        values, ranks = self._values[start:], self._ranks[start:]
        return ChosenLogprobs(token_ids[start:], values, ranks, self._text_of)

    @property
    def total(self) -> float:
        self._sum += sum(self._values[self._num_summed :])
        self._num_summed = len(self._values)
        return self._sum

    def cut(self, length: int) -> None:
        del self._values[length:], self._ranks[length:]
        if length < self._num_summed:  # not by a difference: of what is cut, some may be infinite
            self._sum, self._num_summed = 0.0, 0

    def measured(self, start: int) -> Measured:
        return NOT_MEASURED

    def plain_values(self) -> list[float] | None:
        return None if any(self._ranks) else self._values


class _Likeliest:
    """The chosen and the likeliest tokens, and given labels."""

    def __init__(self, count: int, tokenizer: Tokenizer | None, labels: Sequence[int]) -> None:
        self._count = count
        self._labels = labels
        self._tokenizer = tokenizer
        self._entries: list[LogprobsAtPosition] = []
        self.total = 0.0

    def extend(self, scores: TokenScores, row: int, token_ids: Sequence[int]) -> None:
        entries = [
            logprobs_at(scores, (row, i), self._count, self._tokenizer, self._labels)
            for i in range(len(token_ids))
        ]
        self._entries += entries
        self.total += _sum_of_chosen(entries)

    def since(self, start: int, token_ids: Sequence[int]) -> list[LogprobsAtPosition]:
        return self._entries[start:]

    def cut(self, length: int) -> None:
        del self._entries[length:]
        self.total = _sum_of_chosen(self._entries)  # what is cut may be infinite

    def measured(self, start: int) -> Measured:
        return NOT_MEASURED

    def plain_values(self) -> list[float] | None:
        return None


def _sum_of_chosen(entries: Sequence[LogprobsAtPosition]) -> float:
    """The chosen token is the first of each entry."""
    return sum(next(iter(entry.values())).logprob for entry in entries)


def logprobs_at(
    scores: TokenScores,
    place: tuple[int, ...],
    count: int,
    tokenizer: Tokenizer | None,
    labels: Sequence[int] = (),
) -> LogprobsAtPosition:
    """Log-probabilities of the chosen token, the `count` likeliest tokens, and labels.

    Args:
        scores: as read from a step; must have `logprobs`, and `top_ids` if `count` > 0.
        place: index of the position in the leading dimensions of `scores`.
        labels: the request's `logprob_token_ids`.

    Raises:
        RuntimeError: the step did not compute the requested log-probabilities.
    """
    value = float(_chosen(scores)[place])
    rank = None if scores.ranks is None else int(scores.ranks[place]) or None
    token_id = int(scores.tokens[place])
    entries = {token_id: _logprob(token_id, value, rank, tokenizer)}
    if count:
        if scores.top_ids is None or scores.top_logprobs is None:
            raise RuntimeError("likeliest tokens were asked for, but the step reported none")
        top_ids, values = scores.top_ids[place].tolist(), scores.top_logprobs[place].tolist()
        for i, (top_id, top_value) in enumerate(zip(top_ids[:count], values[:count], strict=True)):
            entries.setdefault(top_id, _logprob(top_id, top_value, i + 1, tokenizer))
    if labels:
        if scores.measures is None:
            raise RuntimeError("logprob_token_ids were given, but the step reported none of them")
        values = scores.measures.labels[place].tolist()
        for label, label_value in zip(labels, values, strict=False):  # padding comes after
            entries.setdefault(label, _logprob(label, label_value, None, tokenizer))
    return entries


def _chosen(scores: TokenScores) -> np.ndarray:
    if scores.logprobs is None:
        raise RuntimeError("log-probabilities were asked for, but the step computed none")
    return scores.logprobs


def _logprob(token_id: int, value: float, rank: int | None, tokenizer: Tokenizer | None) -> Logprob:
    if tokenizer is None:
        return Logprob(value, rank)
    return Logprob(value, rank, tokenizer.token_text(token_id))
