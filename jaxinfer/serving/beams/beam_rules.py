"""The beams of one prompt, by either rule: which go on, which have ended, and when to stop."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jaxinfer.beam_search import BeamSearchParams
from jaxinfer.logprobs import LogprobsAtPosition


@dataclass(frozen=True, slots=True)
class Beam:
    """An output of a prompt so far.

    Attributes:
        logprobs: of each token, the likeliest ones at its position.
        cum_logprob: sum of the tokens' log-probabilities.
        has_ended: whether an end-of-sequence token is its last and ends it.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[LogprobsAtPosition, ...] = ()
    cum_logprob: float = 0.0
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class ScoredBeam:
    """A beam that is complete, and its score."""

    score: float
    beam: Beam


class Search(Protocol):
    """The search after one prompt.

    Attributes:
        running: beams to be continued, the best first; none when the search is over.
        complete: the best complete beams so far, best first.
    """

    running: list[Beam]
    complete: list[ScoredBeam]

    def advance(self, continuations: Iterable[Beam]) -> None:
        """Take the continuations of all running beams by one token."""
        ...


@dataclass
class VllmSearch:
    """vLLM's rule, see `BeamSearchParams`.

    Args:
        end_token_ids: end-of-sequence tokens, which a score does not count, though they end
            nothing.
    """

    params: BeamSearchParams
    num_prompt_tokens: int
    end_token_ids: frozenset[int]
    running: list[Beam] = field(default_factory=lambda: [Beam()])
    complete: list[ScoredBeam] = field(default_factory=list)

    def advance(self, continuations: Iterable[Beam]) -> None:
        """Take the continuations of all running beams by one token."""
        scored = [ScoredBeam(self._score(beam), beam) for beam in continuations]
        going = _best([each for each in scored if not each.beam.has_ended], self.params.beam_width)
        self.running = [each.beam for each in going]
        ended = [each for each in scored if each.beam.has_ended]
        if self.running and len(self.running[0].tokens) == self.params.max_tokens:
            ended, self.running = ended + going, []
        self.complete = _best(self.complete + ended, self.params.num_returned)
        if self.running and self._is_decided():
            self.running = []

    def _score(self, beam: Beam) -> float:
        length = self.num_prompt_tokens + len(beam.tokens)
        length -= beam.tokens[-1] in self.end_token_ids
        return beam.cum_logprob / length**self.params.length_penalty

    def _is_decided(self) -> bool:
        """Whether no running beam can become one of those that are returned.

        Sums only fall. The best score that a sum can lead to is at the longest length where the
        penalty divides, and at the shortest where it multiplies.
        """
        if len(self.complete) < self.params.num_returned:
            return False
        penalty = self.params.length_penalty
        output = self.params.max_tokens if penalty > 0 else len(self.running[0].tokens)
        best = max(beam.cum_logprob for beam in self.running)
        return self.complete[-1].score > best / (self.num_prompt_tokens + output) ** penalty


@dataclass
class TransformersSearch:
    """transformers' rule, see `BeamSearchParams`."""

    params: BeamSearchParams
    running: list[Beam] = field(default_factory=lambda: [Beam()])
    complete: list[ScoredBeam] = field(default_factory=list)

    def advance(self, continuations: Iterable[Beam]) -> None:
        """Take the continuations of all running beams by one token."""
        width, penalty = self.params.beam_width, self.params.length_penalty
        ordered = sorted(continuations, key=operator.attrgetter("cum_logprob"), reverse=True)
        length = len(self.running[0].tokens) + 1
        is_last = length == self.params.max_tokens
        ended = [
            ScoredBeam(beam.cum_logprob / length**penalty, beam)
            for beam in ordered[:width]
            if beam.has_ended or is_last
        ]
        self.complete = _best(self.complete + ended, width)
        going = [] if is_last else [beam for beam in ordered if not beam.has_ended][:width]
        self.running = [] if going and self._is_decided(going[0]) else going

    def _is_decided(self, best: Beam) -> bool:
        """Whether the search ends, although `best` could be continued."""
        if len(self.complete) < self.params.beam_width:
            return False
        if self.params.early_stopping is True:
            return True
        length, penalty = len(best.tokens), self.params.length_penalty
        if self.params.early_stopping == "never" and penalty > 0:
            length = self.params.max_tokens
        return best.cum_logprob / length**penalty <= self.complete[-1].score


def _best(beams: Sequence[ScoredBeam], count: int) -> list[ScoredBeam]:
    """The best beams, best first; of equal ones the first."""
    return sorted(beams, key=operator.attrgetter("score"), reverse=True)[:count]
