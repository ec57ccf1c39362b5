"""Splits the results of steps that measure tokens, and says which steps do."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from jaxinfer.sampling_fields import MAX_LABELS
from jaxinfer.serving.requests.result import TOP, TokenScores, unpack_scores
from jaxinfer.serving.requests.scores.token_measures import TokenMeasures

_NUM_SCALARS = 5


def unpack_measured(packed: np.ndarray) -> TokenScores:
    """Split the packed int32 ``[..., columns]`` of a step that measures into views."""
    k = (packed.shape[-1] - TOP - _NUM_SCALARS - MAX_LABELS) // 3
    scores = unpack_scores(packed[..., : TOP + 2 * k])
    rest = packed[..., TOP + 2 * k :]
    floats = rest.view(np.float32)
    measures = TokenMeasures(
        entropies=floats[..., 0],
        sizes=rest[..., 1],
        log_masses=floats[..., 2],
        drawn_entropies=floats[..., 3],
        least=floats[..., 4],
        top_ids=rest[..., _NUM_SCALARS : _NUM_SCALARS + k],
        labels=floats[..., _NUM_SCALARS + k :],
    )
    return dataclasses.replace(scores, measures=measures)


UNPACK: Mapping[str, Callable[[np.ndarray], TokenScores]] = {
    "temperature": unpack_scores,
    "truncate": unpack_scores,
    "mixed": unpack_scores,
    "full": unpack_scores,
    "measured": unpack_measured,
}
"""What splits the results of a sampler, by its mode."""
