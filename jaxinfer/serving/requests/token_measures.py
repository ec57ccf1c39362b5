"""Measures of tokens beside log-probabilities as NumPy arrays, views of a step's results."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from jaxinfer.sampling_fields import MAX_LABELS
from jaxinfer.serving.requests.result import TOP, TokenScores, unpack_scores
from jaxinfer.serving.sampling.layout import SamplerMode

_NUM_SCALARS = 5


@dataclass(frozen=True)
class TokenMeasures:
    """Measures of the distributions of some tokens; arrays share the leading dimensions ``...``.

    Attributes:
        entropies: float32 ``[...]``, as `Measures.entropy`; so are the next four.
        sizes: int32 ``[...]``.
        log_masses: float32 ``[...]``.
        drawn_entropies: float32 ``[...]``.
        least: float32 ``[...]``.
        top_ids: int32 ``[..., k]``.
        labels: float32 ``[..., L]``; of a request with fewer labels the first are its own.
    """

    entropies: np.ndarray
    sizes: np.ndarray
    log_masses: np.ndarray
    drawn_entropies: np.ndarray
    least: np.ndarray
    top_ids: np.ndarray
    labels: np.ndarray


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


UNPACK: Mapping[SamplerMode, Callable[[np.ndarray], TokenScores]] = {
    "temperature": unpack_scores,
    "truncate": unpack_scores,
    "mixed": unpack_scores,
    "full": unpack_scores,
    "measured": unpack_measured,
}
"""What splits the results of a sampler, by its mode."""
