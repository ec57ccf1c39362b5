"""Log-probabilities of a completion's tokens, under vLLM's names."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability at one position.

    Attributes:
        logprob: natural logarithm, of the model's own distribution or of the one that was sampled:
            see `EngineConfig.logprobs_mode`. In the latter, tokens that can't be drawn have minus
            infinity, which JSON writes as ``-Infinity``.
        rank: 1 for the likeliest token; None where the rank was not computed, which is with
            ``logprobs=0`` where the draw itself gives the log-probability.
        decoded_token: the token's own text; None without a tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Support:
    """The tokens that could have been drawn at one position, and what the draw left out.

    They are what masks, `allowed_token_ids`, penalties, biases, a logits processor, `min_p`,
    `top_k` and `top_p` leave; of greedy decoding the likeliest token alone. A token's
    log-probability in the distribution that was drawn from is that at the request's temperature,
    after all edits, less `log_mass`.

    Attributes:
        num_tokens: how many there are.
        token_ids: of the likeliest, in descending order, as many as ``support`` asks for; ties by
            ascending id.
        log_mass: natural logarithm of their share of the probability before `min_p`, `top_k` and
            `top_p`; 0 where nothing is left out.
        entropy: of the distribution that was drawn from, in nats; 0 of greedy decoding.
        least_logprob: the smallest log-probability of any of them, in that distribution.
    """

    num_tokens: int
    token_ids: Sequence[int]
    log_mass: float
    entropy: float
    least_logprob: float


LogprobsAtPosition = dict[int, Logprob]
"""Token id to log-probability: the chosen (or given) token first, then the likeliest ones."""


@dataclasses.dataclass(eq=False, repr=False)
class ChosenLogprobs(Sequence[LogprobsAtPosition]):
    """Each token's own log-probability, as ``logprobs=0`` asks for.

    A sequence like the list of dictionaries for more log-probabilities, but each dictionary is made
    on access: the hundreds of thousands of objects of a few rollouts would keep Python's garbage
    collector busier than the rest of the engine (vLLM's ``FlatLogprobs`` serve the same purpose).
    It equals such a list, and becomes one when it is pickled or copied; `dataclasses.asdict` makes
    a dictionary of three flat lists of it, which is JSON.

    Args:
        text_of: a token's text; None for no text.

    Attributes:
        token_ids: the tokens.
        values: one natural logarithm a token, for instance for an array.
        ranks: 1 for the likeliest token; None where not computed.
    """

    token_ids: Sequence[int]
    values: Sequence[float]
    ranks: Sequence[int | None]
    text_of: dataclasses.InitVar[Callable[[int], str] | None]

    def __post_init__(self, text_of: Callable[[int], str] | None) -> None:
        self._text_of = text_of

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> LogprobsAtPosition: ...
    @overload
    def __getitem__(self, index: slice) -> "ChosenLogprobs": ...
    def __getitem__(self, index: int | slice) -> "LogprobsAtPosition | ChosenLogprobs":
        token_ids, values, ranks = self.token_ids[index], self.values[index], self.ranks[index]
        if isinstance(index, slice):
            return ChosenLogprobs(token_ids, values, ranks, self._text_of)  # pyright: ignore[reportArgumentType]
        return self._entry(token_ids, values, ranks)

    def __iter__(self) -> Iterator[LogprobsAtPosition]:
        return map(self._entry, self.token_ids, self.values, self.ranks)

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, (ChosenLogprobs, list)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list], tuple[list[LogprobsAtPosition]]]:
        return list, (list(self),)

    def joined(self, behind: "ChosenLogprobs") -> "ChosenLogprobs":
        """These, and others behind them."""
        return ChosenLogprobs(
            [*self.token_ids, *behind.token_ids],
            [*self.values, *behind.values],
            [*self.ranks, *behind.ranks],
            self._text_of,
        )

    def _entry(self, token_id: Any, value: Any, rank: Any) -> LogprobsAtPosition:
        text = None if self._text_of is None else self._text_of(token_id)
        return {token_id: Logprob(value, rank, text)}
