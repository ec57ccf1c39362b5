"""Calls gguf, the optional package that knows GGUF's types."""

import functools
from typing import Any

from jaxinfer.optional import import_optional


@functools.cache
def gguf() -> Any:
    """The package; MissingPackageError if it is not installed."""
    for module in ("gguf.quants", "gguf"):
        package = import_optional(module, needed_by="a GGUF file", install="jaxinfer[gguf]")
    return package
