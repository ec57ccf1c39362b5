"""Calls llguidance, the optional grammar library."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.cores import usable_cores
from jaxinfer.optional import import_optional

_MOST_THREADS = 16  # 64 rows don't keep more of them busy


@functools.cache
def llguidance() -> Any:
    """The library; MissingPackageError if it is not installed."""
    user, extra = "structured_outputs", "jaxinfer[guided]"
    import_optional("llguidance.numpy", needed_by=user, install=extra)
    return import_optional("llguidance", needed_by=user, install=extra)


def fill_masks(states: Sequence[tuple[Any, int]], allowed: np.ndarray) -> None:
    """Compute masks of `llguidance.LLMatcher`s into rows of int32 ``[n, words]``; the GIL is free.

    Raises:
        MissingPackageError: llguidance is not installed.
    """
    if len(states) == 1:  # waking a thread takes longer than most masks
        llguidance().numpy.fill_next_token_bitmask(states[0][0], allowed, states[0][1])
    elif states:
        llguidance().numpy.fill_next_token_bitmask_par(_threads(), states, allowed)


@functools.cache
def _threads() -> Any:
    """The `llguidance.LLExecutor` of all engines of this process."""
    return llguidance().LLExecutor(num_threads=min(usable_cores(), _MOST_THREADS))
