"""The scores of some given tokens, with measures: a prompt's from one on, and forced ones."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.scored_tokens import ScoredTokensKey
from jaxinfer.serving.programs.resident import StepOutputs
from jaxinfer.serving.requests.result import SCORED, TokenScores
from jaxinfer.serving.requests.scores.scored_range import is_scored_plainly
from jaxinfer.serving.requests.scores.unpack import unpack_measured
from jaxinfer.serving.runner.readouts.given_tokens import fed_predictors, pack_given
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.scheduler.schedule import ScheduledRow


class ScoredTokens(Readout):
    """A row's value is the `TokenScores` ``[n]`` of the tokens that it feeds predictors of.

    They follow each other from the row's first position in `Request.scored`.
    """

    name = SCORED
    needs_all_tokens = True

    def wants(self, row: ScheduledRow) -> bool:
        """True for rows that feed predictors of scored tokens, where not just all are prompt."""
        scored = row.request.scored
        return (
            bool(scored) and bool(fed_predictors(row)) and not is_scored_plainly(row.request.params)
        )

    def pack(self, rows: Sequence[ScheduledRow], num_tokens: int) -> np.ndarray:
        """Int32 ``[T, columns]``: the tokens to score, row by row, as `GivenColumn` says."""
        return pack_given(rows, [self.wants(row) for row in rows], num_tokens)

    def launch(
        self,
        head: Any,
        step: StepOutputs,
        packed: jax.Array | None,
        program: Callable[[ProgramKey], jax.stages.Compiled],
    ) -> jax.Array:
        """Int32 ``[T, columns]``, as `unpack_measured` reads them."""
        assert packed is not None
        return program(ScoredTokensKey(len(packed)))(head, step.residual, packed)

    def unpack(self, fetched: np.ndarray, rows: Sequence[ScheduledRow]) -> list[TokenScores | None]:
        """Views of the rows' scores."""
        counts = [len(fed_predictors(row)) if self.wants(row) else 0 for row in rows]
        ends = itertools.accumulate(counts)
        return [
            unpack_measured(fetched[end - count : end]) if count else None
            for count, end in zip(counts, ends, strict=True)
        ]
