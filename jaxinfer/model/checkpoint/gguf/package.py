"""Calls gguf, the optional package that knows GGUF's types; its absence is one clear error."""

import functools
from typing import Any

from jaxinfer.errors import MissingPackageError

_MISSING = "GGUF files need the package gguf (pip install 'jaxinfer[gguf]')"


@functools.cache
def gguf() -> Any:
    """The package.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import gguf as package  # pyright: ignore[reportMissingImports]
        import gguf.quants  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackageError(_MISSING, name="gguf") from error
    return package
