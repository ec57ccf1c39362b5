"""Packs the given tokens of a step that are scored, with the parameters that their scores read."""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxinfer.serving.programs.kinds.scored_tokens import NUM_GIVEN_COLUMNS, GivenColumn
from jaxinfer.serving.scheduler.schedule import ScheduledRow
from jaxinfer.serving.slots.mode_inputs import write_labels


def pack_given(rows: Sequence[ScheduledRow], wanted: Sequence[bool], num_tokens: int) -> np.ndarray:
    """Int32 ``[T, columns]``: the tokens to score, row by row, as `GivenColumn` says; then -1.

    Args:
        rows: of a step, in packed order.
        wanted: which of them have tokens to score.
        num_tokens: T, of the step.
    """
    given = np.full((num_tokens, NUM_GIVEN_COLUMNS), -1, np.int32)
    end = 0
    for row, is_wanted, first in zip(rows, wanted, _firsts(rows), strict=True):
        if is_wanted:
            positions = fed_predictors(row)
            start, end = end, end + len(positions)
            _write(given[start:end], row, positions, first)
    return given


def fed_predictors(row: ScheduledRow) -> range:
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
    into[:, len(GivenColumn) :] = 0
    write_labels(into[:, len(GivenColumn) :], row)
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
