"""Imports llguidance, the optional grammar library; its absence is one clear error."""

import functools
from typing import Any

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


@functools.cache
def mask_threads() -> Any:
    """The `llguidance.LLExecutor` that all engines of this process compute masks with.

    Raises:
        MissingPackageError: llguidance is not installed.
    """
    return llguidance().LLExecutor(num_threads=min(usable_cores(), _MOST_THREADS))
