"""Records what was measured of a completion's tokens, and scores of those that it was forced to.

Each recording wraps one of log-probabilities (`completion_logprobs.py`), and is one itself.
"""

from collections.abc import Sequence

from jaxinfer.logprobs import ChosenLogprobs, LogprobsAtPosition, Support
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.completion_logprobs import (
    NOT_MEASURED,
    Measured,
    Recording,
    start_logprobs,
)
from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.scores.score_arrays import joined_scores, scores_behind
from jaxinfer.serving.requests.scores.token_measures import TokenMeasures


def start_recording(
    params: SamplingParams, tokenizer: Tokenizer | None, forced: "ForcedScores | None" = None
) -> Recording | None:
    """A recording of all that is asked for of each token; None for nothing.

    Args:
        forced: the scores of the tokens that the completion begins with, if there are any.
    """

    def make() -> Recording | None:
        logprobs = start_logprobs(params.logprobs, tokenizer, params.logprob_token_ids)
        if not params.entropy and params.support is None:
            return logprobs
        return _WithMeasures(logprobs, params)

    recording = make()
    if recording is None or forced is None:
        return recording
    before = make()
    assert before is not None
    return _BehindForced(forced, before, recording)


class ForcedScores:
    """The scores of the tokens that a request's completions are forced to, as far as known.

    Args:
        token_ids: these tokens.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = token_ids
        self._pieces: dict[int, TokenScores] = {}

    def add(self, start: int, scores: TokenScores) -> None:
        """Record scores ``[n]`` of the tokens from `start` on; known ones may come again."""
        if len(scores.tokens):
            self._pieces[start] = scores

    def joined(self) -> TokenScores | None:
        """The scores ``[1, count]`` of all of them; None before all are known."""
        found, end = [], 0
        for start, scores in sorted(self._pieces.items(), key=lambda piece: piece[0]):
            if start > end:
                return None
            found.append(scores_behind(scores, end - start))
            end = max(end, start + len(scores.tokens))
        if end < len(self.token_ids):
            return None
        return joined_scores(found)


class _WithMeasures:
    """Entropies and supports beside log-probabilities, or without any."""

    def __init__(self, logprobs: Recording | None, params: SamplingParams) -> None:
        self._logprobs = logprobs
        self._measured = Measured(
            [] if params.entropy else None, None if params.support is None else []
        )
        self._most_ids = params.support or 0

    def extend(self, scores: TokenScores, row: int, token_ids: Sequence[int]) -> None:
        if self._logprobs is not None:
            self._logprobs.extend(scores, row, token_ids)
        count, measures = len(token_ids), scores.measures
        if measures is None:
            raise RuntimeError("entropy or support was asked for, but the step measured nothing")
        entropies, supports = self._measured
        if entropies is not None:
            entropies += measures.entropies[row, :count].tolist()
        if supports is not None:
            supports += [_support(measures, (row, i), self._most_ids) for i in range(count)]

    def since(self, start: int, token_ids: Sequence[int]) -> Sequence[LogprobsAtPosition] | None:
        return None if self._logprobs is None else self._logprobs.since(start, token_ids)

    @property
    def total(self) -> float | None:
        return None if self._logprobs is None else self._logprobs.total

    def measured(self, start: int) -> Measured:
        return self._measured.since(start)

    def cut(self, length: int) -> None:
        if self._logprobs is not None:
            self._logprobs.cut(length)
        for values in self._measured:
            if values is not None:
                del values[length:]

    def plain_values(self) -> list[float] | None:
        return None


class _BehindForced:
    """Of tokens that are drawn behind forced ones, whose scores may come later."""

    def __init__(self, forced: ForcedScores, before: Recording, behind: Recording) -> None:
        self._forced, self._before, self._behind = forced, before, behind
        self._num_forced = len(forced.token_ids)
        self._is_known = False

    def extend(self, scores: TokenScores, row: int, token_ids: Sequence[int]) -> None:
        self._behind.extend(scores, row, token_ids)

    def since(self, start: int, token_ids: Sequence[int]) -> Sequence[LogprobsAtPosition] | None:
        count = self._num_forced
        if not self._knows():
            return None
        before = self._before.since(min(start, count), token_ids[:count])
        behind = self._behind.since(max(start - count, 0), token_ids[count:])
        if before is None or behind is None:
            return None
        if isinstance(before, ChosenLogprobs) and isinstance(behind, ChosenLogprobs):
            return before.joined(behind)
        return [*before, *behind]

    @property
    def total(self) -> float | None:
        if not self._knows():
            return None
        before, behind = self._before.total, self._behind.total
        return None if before is None or behind is None else before + behind

    def measured(self, start: int) -> Measured:
        if not self._knows():
            return NOT_MEASURED
        count = self._num_forced
        before = self._before.measured(min(start, count))
        return before.joined(self._behind.measured(max(start - count, 0)))

    def cut(self, length: int) -> None:
        self._before.cut(min(length, self._num_forced))
        self._behind.cut(max(length - self._num_forced, 0))
        self._num_forced = min(length, self._num_forced)

    def plain_values(self) -> list[float] | None:
        return self._behind.plain_values()

    def _knows(self) -> bool:
        """Whether the forced tokens' scores are there; takes them over."""
        if not self._is_known and (scores := self._forced.joined()) is not None:
            self._before.extend(scores, 0, self._forced.token_ids)
            self._before.cut(self._num_forced)
            self._is_known = True
        return self._is_known


def _support(measures: TokenMeasures, place: tuple[int, ...], most_ids: int) -> Support:
    size = int(measures.sizes[place])
    return Support(
        num_tokens=size,
        token_ids=measures.top_ids[place][: min(size, most_ids)].tolist(),
        log_mass=float(measures.log_masses[place]),
        entropy=float(measures.drawn_entropies[place]),
        least_logprob=float(measures.least[place]),
    )
