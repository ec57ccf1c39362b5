"""The scores of some given tokens, with measures: a prompt's from one on, and forced ones."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.scored_tokens import ScoredTokensKey
from jaxinfer.serving.programs.resident import StepOutputs
from jaxinfer.serving.programs.scored_tokens import NUM_GIVEN_COLUMNS, GivenColumn
from jaxinfer.serving.requests.result import SCORED, TokenScores
from jaxinfer.serving.requests.scored_range import is_scored_plainly
from jaxinfer.serving.requests.token_measures import unpack_measured
from jaxinfer.serving.runner.labels import labels_of
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
        return bool(_positions(row)) and not is_scored_plainly(row.request.params)

    def pack(self, rows: Sequence[ScheduledRow], num_tokens: int) -> np.ndarray:
        """Int32 ``[T, columns]``: the tokens to score, row by row, as `GivenColumn` says."""
        given = np.full((num_tokens, NUM_GIVEN_COLUMNS), -1, np.int32)
        end = 0
        for row, first in zip(rows, _firsts(rows), strict=True):
            if self.wants(row):
                positions = _positions(row)
                start, end = end, end + len(positions)
                _write(given[start:end], row, positions, first)
        return given

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
        values: list[TokenScores | None] = []
        end = 0
        for row in rows:
            if not self.wants(row):
                values.append(None)
                continue
            start, end = end, end + len(_positions(row))
            values.append(unpack_measured(fetched[start:end]))
        return values


def _positions(row: ScheduledRow) -> range:
    """Positions that a row feeds and whose next token is scored."""
    scored, stop = row.request.scored, row.start + row.num_fed
    return range(max(row.start, scored.start), min(stop, scored.stop))


def _firsts(rows: Sequence[ScheduledRow]) -> Iterator[int]:
    """Each row's first index in the packed tokens."""
    first = 0
    for row in rows:
        yield first
        first += row.num_fed


def _write(into: np.ndarray, row: ScheduledRow, positions: range, first: int) -> None:
    """Fill the columns of a row's tokens; prompt tokens are scored at temperature 1, untruncated.

    Args:
        into: int32 ``[n, columns]``.
        first: the row's first index in the packed tokens.
    """
    request, params = row.request, row.request.params
    floats = into.view(np.float32)
    into[:, GivenColumn.PLACE] = np.arange(len(positions)) + (first + positions.start - row.start)
    into[:, GivenColumn.TOKEN] = request.tokens(positions.start + 1, positions.stop + 1)
    into[:, len(GivenColumn) :] = labels_of([request], 1)
    into[:, GivenColumn.TOP_K] = 0
    floats[:, GivenColumn.TEMPERATURE] = floats[:, GivenColumn.TOP_P] = 1.0
    floats[:, GivenColumn.MIN_P] = 0.0
    num_of_prompt = max(request.num_prompt_tokens - 1 - positions.start, 0)
    into, floats = into[num_of_prompt:], floats[num_of_prompt:]
    floats[:, GivenColumn.TEMPERATURE] = params.temperature
    if not params.is_greedy:
        into[:, GivenColumn.TOP_K] = max(params.top_k, 0)
        floats[:, GivenColumn.TOP_P] = params.top_p
        floats[:, GivenColumn.MIN_P] = params.min_p
