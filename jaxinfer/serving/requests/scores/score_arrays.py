"""Changes the arrays of `TokenScores` together, measures included."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.scores.token_measures import TokenMeasures


def scores_behind(scores: TokenScores, count: int) -> TokenScores:
    """Scores ``[n]`` without the leading `count`."""
    return _changed(lambda arrays: arrays[0][count:], [scores])


def joined_scores(pieces: Sequence[TokenScores]) -> TokenScores:
    """Scores ``[n]`` of several pieces as ``[1, sum of n]``; all have the same arrays.

    Of the likeliest tokens there are as many as in the piece that has the fewest.
    """
    return _changed(lambda arrays: _joined(arrays)[None], pieces)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    least = min(each.shape[1:] for each in arrays)
    return np.concatenate([each[:, : least[0]] if least else each for each in arrays])


def _changed(
    change: Callable[[Sequence[np.ndarray]], np.ndarray], pieces: Sequence[TokenScores]
) -> TokenScores:
    fields = _arrays(change, pieces)
    measures = [each.measures for each in pieces if each.measures is not None]
    if len(measures) == len(pieces):
        fields["measures"] = TokenMeasures(**_arrays(change, measures))
    return TokenScores(**fields)


def _arrays(
    change: Callable[[Sequence[np.ndarray]], np.ndarray], records: Sequence[Any]
) -> dict[str, Any]:
    """The changed arrays of records, by field."""
    changed = {}
    for field in dataclasses.fields(records[0]):
        values = [getattr(record, field.name) for record in records]
        if isinstance(values[0], np.ndarray):
            changed[field.name] = change(values)
    return changed
