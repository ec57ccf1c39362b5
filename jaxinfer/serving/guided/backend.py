"""Imports llguidance, the optional grammar library; its absence is one clear error."""

import functools
from typing import Any

import numpy as np

from jaxinfer.cores import usable_cores
from jaxinfer.errors import MissingPackageError

_MISSING = "structured_outputs needs the package llguidance (pip install 'jaxinfer[guided]')"
_MOST_THREADS = 16  # 64 rows leave more of them nothing to do


@functools.cache
def llguidance() -> Any:
    """The library.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import llguidance as library
        import llguidance.numpy
    except ImportError as error:
        raise MissingPackageError(_MISSING, name="llguidance") from error
    return library


def fill_mask(state: Any, allowed: np.ndarray, row: int = 0) -> None:
    """Compute the mask of one `llguidance.LLMatcher` into a row of int32 ``[n, words]``."""
    llguidance().numpy.fill_next_token_bitmask(state, allowed, row)


@functools.cache
def mask_threads() -> Any:
    """The `llguidance.LLExecutor` that all engines of this process compute masks with.

    Raises:
        MissingPackageError: llguidance is not installed.
    """
    return llguidance().LLExecutor(num_threads=min(usable_cores(), _MOST_THREADS))
