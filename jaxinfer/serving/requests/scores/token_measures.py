"""Measures of tokens beside log-probabilities as NumPy arrays, views of a step's results."""

from dataclasses import dataclass

import numpy as np


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
